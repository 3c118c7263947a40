// Tries all that a browser lets a page send to `base`: each operation as pages can ask for it. Answers with what came of each
// attempt: "refused"; "sent", where the page cannot know; "status 403", where it can; and anything else is a find.
async (base, operations) => {
  const LIMIT_MS = 30000;
  const once = (start) => new Promise((resolve) => {
    setTimeout(() => resolve("silent"), LIMIT_MS);
    start(resolve);
  });
  const fetched = async (url, options) => {
    try {
      const answer = await fetch(url, { ...options, signal: AbortSignal.timeout(LIMIT_MS) });
      if (answer.type === "opaque") return "sent";
      return answer.status === 403 ? "status 403" : `read ${answer.status} ${(await answer.text()).slice(0, 200)}`;
    } catch (error) {
      return error.name === "TimeoutError" ? "silent" : "refused";
    }
  };
  const element = (name, attribute, url, fields) => once((done) => {
    const it = Object.assign(document.createElement(name), fields);
    it.onload = () => { it.remove(); done("loaded"); };
    it.onerror = () => { it.remove(); done("refused"); };
    it[attribute] = url;
    document.body.append(it);
  });
  const frame = (send) => once((done) => {
    const it = Object.assign(document.createElement("iframe"), { name: `f${Math.random()}` });
    document.body.append(it);
    it.onload = () => {
      let text = null;
      try { text = it.contentDocument.body.innerText; } catch { /* a page of another origin */ }
      it.remove();
      done(text === null ? "sent" : text.includes('"forbidden"') ? "status 403" : `read ${text.slice(0, 200)}`);
    };
    send(it);
  });
  const form = (method, enctype, url, text) => frame((it) => {
    const form = Object.assign(document.createElement("form"), { method, enctype, action: url, target: it.name });
    // As text/plain the pair is JSON: name=value.
    form.append(Object.assign(document.createElement("input"), { name: `${text.slice(0, -1)}, "x": "`, value: '"}' }));
    document.body.append(form);
    form.submit();
    form.remove();
  });
  const socket = (url) => once((done) => {
    const it = new WebSocket(url.replace("http", "ws"), "fencepost.v1");
    it.onopen = () => { it.close(); done("opened"); };
    it.onerror = () => done("refused");
  });
  const events = (url) => once((done) => {
    const it = new EventSource(url);
    it.onopen = () => { it.close(); done("opened"); };
    it.onerror = () => { it.close(); done("refused"); };
  });

  const attempts = (method, url, text) => {
    const plain = { "content-type": "text/plain" };
    const json = { "content-type": "application/json" };
    if (method === "GET") {
      return {
        "fetch cors": () => fetched(url, {}),
        "fetch no-cors": () => fetched(url, { mode: "no-cors" }),
        "fetch HEAD": () => fetched(url, { mode: "no-cors", method: "HEAD" }),
        "image": () => element("img", "src", url, {}),
        "script": () => element("script", "src", url, {}),
        "stylesheet": () => element("link", "href", url, { rel: "stylesheet" }),
        "event source": () => events(url),
      };
    }
    const all = {
      "fetch cors json": () => fetched(url, { method, body: text, headers: json }),
      "fetch cors text": () => fetched(url, { method, body: text, headers: plain }),
    };
    if (method === "POST") {
      Object.assign(all, {
        "fetch no-cors text": () => fetched(url, { method, body: text, headers: plain, mode: "no-cors" }),
        "fetch no-cors empty": () => fetched(url, { method, mode: "no-cors" }),
        "beacon": async () => (navigator.sendBeacon(url, new Blob([text], { type: "text/plain" })), "sent"),
      });
    }
    return all;
  };
  const frames = (method, url, text) => {
    const all = {};
    if (method === "GET") all["frame"] = () => frame((it) => { it.src = url; });
    if (method !== "GET" && method !== "POST") return all;
    for (const enctype of ["application/x-www-form-urlencoded", "multipart/form-data", "text/plain"]) {
      all[`form ${enctype}`] = () => form(method, enctype, url, text);
      // It goes into the address.
      if (method === "GET") break;
    }
    return all;
  };
  const outcomes = [];
  const tryAll = async ({ method, path, body }, of) => {
    const tried = Object.entries(of(method, base + path, JSON.stringify(body ?? {})));
    await Promise.all(tried.map(async ([how, send]) => outcomes.push([`${how}: ${method} ${path}`, await send()])));
  };
  for (const operation of operations) {
    await tryAll(operation, attempts);
    await tryAll(operation, frames);
  }
  // A browser makes a page wait between sockets that are refused.
  for (const { path } of operations.filter(({ path }) => path.endsWith("/ws"))) {
    outcomes.push([`socket: ${path}`, await socket(base + path)]);
  }
  return outcomes;
}
