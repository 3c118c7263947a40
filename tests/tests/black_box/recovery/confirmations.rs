//! Many signers are confirmed at once, from a file.

use super::*;

async fn granted(url: &str, signer: &str) -> u64 {
    let path = format!("{url}/v1/signers/{signer}/nonces");
    let answer = patient().request("POST", &path, None, Some(&json!({"hold_ms": HOLD_MS}))).await.unwrap();
    assert_eq!(answer.status, 201, "{}", answer.text);
    answer.body["grants"][0]["nonce"].as_u64().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_confirms_many_signers_and_again_and_a_refused_line_keeps_no_other_one_back() {
    let folder = tempfile::tempdir().unwrap();
    let start = async || Setup::basic().unwrap().dir(folder.path()).start().await.unwrap();
    let mut first = start().await;
    assert_eq!([granted(first.url(), "a").await, granted(first.url(), "b").await], [0, 0]);
    first.end_by(Signal::Terminate, testkit::PATIENCE).await.unwrap();
    recovered("sqlite:./fencepost-data/ledger.db", folder.path()).await;
    let second = start().await;
    let url = second.url();
    let confirm = async |lines: &str, more: &[&str]| {
        let file = folder.path().join("signers");
        std::fs::write(&file, lines).unwrap();
        let command = Setup::command("nonce").arg("confirm").arg("-f").arg(file.to_str().unwrap());
        let command = more.iter().fold(command, |command, arg| command.arg(arg));
        command.env("FENCEPOST_URL", url).run_to_end(testkit::PATIENCE).await.unwrap()
    };
    let wrong = confirm("a 1\nb", &[]).await;
    assert_eq!((wrong.code, wrong.stdout.as_str()), (Some(2), ""), "{wrong:?}");
    assert!(wrong.stderr.contains("line 2: "), "{wrong:?}");
    for _ in 0..2 {
        let done = confirm("b 7\n\na 1\n", &[]).await;
        let said = "signer b is confirmed, next nonce 7\nsigner a is confirmed, next nonce 1\n";
        assert_eq!((done.code, done.stdout.as_str()), (Some(0), said), "{done:?}");
    }
    // The second line is another number than before, and one signer is not known yet.
    let refused = confirm("a 1\nb 8\nnew 0\n", &[]).await;
    let said = "signer a is confirmed, next nonce 1\nsigner new is confirmed, next nonce 0\n";
    assert_eq!((refused.code, refused.stdout.as_str()), (Some(1), said), "{refused:?}");
    assert!(refused.stderr.contains("b: refused: conflict: "), "{refused:?}");
    let refused = confirm("b 8\nnew 0\n", &["--json"]).await;
    let problem: Value = serde_json::from_str(&refused.stderr).unwrap();
    assert_eq!((refused.code, &problem["id"], &problem["code"]), (Some(1), &json!("b"), &json!("conflict")));
    let shown: Value = serde_json::from_str(&refused.stdout).unwrap();
    assert_eq!((&shown["signer"], &shown["next_nonce"]), (&json!("new"), &json!(0)));
    for (signer, nonce) in [("a", 1), ("b", 7), ("new", 0)] {
        assert_eq!(granted(url, signer).await, nonce, "{signer}");
    }
}
