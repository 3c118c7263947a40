//! Finds circles between the files of a crate: which file uses which is read from its `use` declarations and its
//! qualified paths, so no compiler is needed.
//!
//! A module is a file. What a path names is followed through re-exports to the file that defines it. A file may use its
//! own ancestors' items (a child is a part of its parent), so such arrows do not count; those of a parent to its
//! children do. What is compiled for tests alone does not count either.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// A module's path below the crate's root; empty for the root.
pub type Module = Vec<String>;

/// The circles between the files below `src`: of each the files in an order in which every one uses the next, and the
/// last the first.
pub fn circles(src: &Path) -> Vec<Vec<Module>> {
    let files = Files::read(src);
    let arrows = files.arrows();
    strongly_connected(&arrows).into_iter().map(|members| shortest(&arrows, &members)).collect()
}

/// A circle as a person reads it.
pub fn shown(circle: &[Module]) -> String {
    let name = |module: &Module| match module.is_empty() {
        true => "(root)".to_owned(),
        false => module.join("::"),
    };
    let names: Vec<_> = circle.iter().chain(circle.first()).map(name).collect();
    names.join(" -> ")
}

fn joined(module: &Module, name: &str) -> Module {
    module.iter().cloned().chain([name.to_owned()]).collect()
}

/// What one file says.
#[derive(Default)]
struct File {
    /// The names that it declares with `use`, and what they stand for.
    imports: Vec<(String, Module)>,
    /// The paths that it names, from the crate's root on.
    paths: BTreeSet<Module>,
    /// What it imports as `path::*`.
    globs: Vec<Module>,
}

struct Files(BTreeMap<Module, File>);

type Arrows = BTreeMap<Module, BTreeSet<Module>>;

impl Files {
    fn read(src: &Path) -> Self {
        let root = ["lib.rs", "main.rs"].map(|name| src.join(name)).into_iter().find(|path| path.is_file());
        let mut files = Self(BTreeMap::new());
        files.add(&root.unwrap_or_else(|| panic!("{} has no root", src.display())), src, Module::new());
        files
    }

    /// Reads a file and those of its modules; `dir` is where they are.
    fn add(&mut self, path: &Path, dir: &Path, module: Module) {
        let text =
            std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let mut reader =
            Reader { tokens: tokens(&text), at: 0, scope: module.clone(), file: File::default() };
        let children = reader.read();
        self.0.insert(module.clone(), reader.file);
        for (name, named) in children {
            let inside = dir.join(&name);
            let child = joined(&module, &name);
            let beside = named.map(|named| path.parent().expect("it is in a folder").join(named));
            let path = beside.into_iter().chain([inside.with_extension("rs"), inside.join("mod.rs")]);
            let path = path.into_iter().find(|path| path.is_file());
            self.add(&path.unwrap_or_else(|| panic!("{} has no file", child.join("::"))), &inside, child);
        }
    }

    fn arrows(&self) -> Arrows {
        let of = |(module, file): (&Module, &File)| {
            let named = file.paths.iter().chain(&file.globs);
            let used = named.filter_map(|path| self.home(path, 0)).filter(|used| !module.starts_with(used));
            (module.clone(), used.collect())
        };
        self.0.iter().map(of).collect()
    }

    /// The file that defines what a path names, as far as re-exports can be followed.
    fn home(&self, path: &[String], depth: usize) -> Option<Module> {
        // Longer than any chain of re-exports that is no circle itself.
        const DEPTH_MAX: usize = 16;
        let length = (0..=path.len()).rev().find(|length| self.0.contains_key(&path[..*length]))?;
        let (module, rest) = path.split_at(length);
        let file = &self.0[module];
        let here = Some(module.to_vec());
        let Some((name, rest)) = rest.split_first().filter(|_| depth < DEPTH_MAX) else { return here };
        let imported = file.imports.iter().find(|(known, _)| known == name);
        let Some((_, target)) = imported else { return here };
        let target = [&target[..], rest].concat();
        if target == path { here } else { self.home(&target, depth + 1).or(here) }
    }
}

/// The sets of more than one module that all reach each other.
fn strongly_connected(arrows: &Arrows) -> Vec<BTreeSet<Module>> {
    let reach: BTreeMap<&Module, BTreeSet<&Module>> =
        arrows.keys().map(|from| (from, reached(arrows, from))).collect();
    let mut found = Vec::<BTreeSet<Module>>::new();
    for from in arrows.keys().filter(|from| reach[from].contains(from)) {
        if !found.iter().any(|members| members.contains(from)) {
            let back = |to: &&&Module| reach[**to].contains(from);
            found.push(reach[from].iter().filter(back).map(|to| (*to).clone()).collect());
        }
    }
    found
}

fn reached<'a>(arrows: &'a Arrows, from: &Module) -> BTreeSet<&'a Module> {
    let mut reached = BTreeSet::new();
    let mut open: Vec<&Module> = arrows[from].iter().collect();
    while let Some(module) = open.pop() {
        if reached.insert(module) {
            open.extend(arrows.get(module).into_iter().flatten());
        }
    }
    reached
}

/// A shortest circle among these.
fn shortest(arrows: &Arrows, members: &BTreeSet<Module>) -> Vec<Module> {
    let round = |first: &Module| {
        let mut ways = vec![vec![first.clone()]];
        let mut seen = BTreeSet::new();
        loop {
            let mut longer = Vec::new();
            for way in &ways {
                for next in arrows[way.last().expect("a way has a beginning")].intersection(members) {
                    if next == first {
                        return way.clone();
                    }
                    if seen.insert(next.clone()) {
                        longer.push(way.iter().cloned().chain([next.clone()]).collect());
                    }
                }
            }
            ways = longer;
        }
    };
    members.iter().map(round).min_by_key(Vec::len).expect("a circle has members")
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Word(String),
    /// What a string literal holds.
    Text(String),
    /// `::`
    Path,
    Other(char),
}

/// The words and signs of a source text, without comments.
fn tokens(text: &str) -> Vec<Token> {
    let chars: Vec<char> = text.chars().collect();
    let at = |index: usize| chars.get(index).copied().unwrap_or('\0');
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let (mut tokens, mut i) = (Vec::new(), 0);
    while i < chars.len() {
        let c = chars[i];
        if c == '/' && at(i + 1) == '/' {
            while i < chars.len() && chars[i] != '\n' {
                i += 1;
            }
        } else if c == '/' && at(i + 1) == '*' {
            let mut depth = 0;
            loop {
                match (at(i), at(i + 1)) {
                    ('/', '*') => (depth, i) = (depth + 1, i + 2),
                    ('*', '/') => (depth, i) = (depth - 1, i + 2),
                    _ => i += 1,
                }
                if depth == 0 || i >= chars.len() {
                    break;
                }
            }
        } else if let Some((end, held)) = literal(&chars, i) {
            tokens.push(Token::Text(held));
            i = end;
        } else if c == '\'' {
            // A character, or a lifetime.
            i += match (at(i + 1), at(i + 2)) {
                ('\\', _) => {
                    (i + 3..chars.len()).find(|end| chars[*end] == '\'').map_or(1, |end| end + 1 - i)
                }
                (_, '\'') => 3,
                _ => 1,
            };
        } else if is_word(c) {
            let end = (i..chars.len()).find(|end| !is_word(chars[*end])).unwrap_or(chars.len());
            tokens.push(Token::Word(chars[i..end].iter().collect()));
            i = end;
        } else if c == ':' && at(i + 1) == ':' {
            tokens.push(Token::Path);
            i += 2;
        } else {
            if !c.is_whitespace() {
                tokens.push(Token::Other(c));
            }
            i += 1;
        }
    }
    tokens
}

/// A string literal that begins here: where it ends, and what it holds.
fn literal(chars: &[char], from: usize) -> Option<(usize, String)> {
    let prefix = chars[from..].iter().take_while(|c| matches!(c, 'b' | 'c' | 'r')).count();
    let is_alone = from == 0 || !(chars[from - 1].is_alphanumeric() || chars[from - 1] == '_');
    if prefix > 2 || (prefix > 0 && !is_alone) {
        return None;
    }
    let hashes = chars[from + prefix..].iter().take_while(|c| **c == '#').count();
    let is_raw = chars[from..from + prefix].contains(&'r');
    let open = from + prefix + hashes;
    if chars.get(open) != Some(&'"') || (hashes > 0 && !is_raw) {
        return None;
    }
    let mut end = open + 1;
    while end < chars.len() {
        match chars[end] {
            '\\' if !is_raw => end += 2,
            '"' if chars[end + 1..].iter().take(hashes).filter(|c| **c == '#').count() == hashes => break,
            _ => end += 1,
        }
    }
    let held = chars[open + 1..end.min(chars.len())].iter().collect();
    Some((end + 1 + hashes, held))
}

/// Goes through one file.
struct Reader {
    tokens: Vec<Token>,
    at: usize,
    /// The module that is being read: the file's, or one inside it.
    scope: Module,
    file: File,
}

impl Reader {
    /// Reads to the end; the modules that have files of their own, each with the file that it names, if it does.
    fn read(&mut self) -> Vec<(String, Option<String>)> {
        let mut children = Vec::new();
        let mut names = BTreeSet::new();
        // How deep in braces, and at which depth the modules inside this file end.
        let (mut depth, mut inside) = (0_usize, Vec::new());
        let mut named = None;
        // Children are known before they are used.
        for window in self.tokens.windows(3) {
            if let [Token::Word(word), Token::Word(name), Token::Other(';' | '{')] = window
                && word == "mod"
            {
                names.insert(name.clone());
            }
        }
        while self.at < self.tokens.len() {
            match self.tokens[self.at].clone() {
                Token::Other('#') => {
                    let attribute = self.attribute();
                    if is_test(&attribute) {
                        self.skip_item();
                    } else if let [Token::Word(word), Token::Other('='), Token::Text(file)] = &attribute[..]
                        && word == "path"
                    {
                        named = Some(file.clone());
                    }
                }
                Token::Word(word) if word == "mod" && matches!(self.peek(1), Some(Token::Word(_))) => {
                    let Some(Token::Word(name)) = self.peek(1).cloned() else {
                        unreachable!("it was looked at")
                    };
                    self.at += 2;
                    if self.peek(0) == Some(&Token::Other(';')) {
                        children.push((name, named.take()));
                    } else {
                        inside.push(depth);
                        self.scope.push(name);
                    }
                }
                Token::Word(word) if word == "use" => {
                    self.at += 1;
                    let is_foreign = self.peek(0) == Some(&Token::Path);
                    self.tree(&[], is_foreign, &names);
                }
                Token::Word(word) => {
                    self.at += 1;
                    self.qualified(word, &names);
                }
                // From outside.
                Token::Path => {
                    self.at += 1;
                    while matches!(self.peek(0), Some(Token::Word(_) | Token::Path)) {
                        self.at += 1;
                    }
                }
                Token::Other(c) => {
                    self.at += 1;
                    depth = match c {
                        '{' => depth + 1,
                        '}' => depth - 1,
                        _ => depth,
                    };
                    if c == '}' && inside.last() == Some(&depth) {
                        inside.pop();
                        self.scope.pop();
                    }
                }
                Token::Text(_) => self.at += 1,
            }
        }
        children
    }

    fn peek(&self, ahead: usize) -> Option<&Token> {
        self.tokens.get(self.at + ahead)
    }

    /// The tokens between the brackets of the attribute that begins here.
    fn attribute(&mut self) -> Vec<Token> {
        self.at += 1;
        if self.peek(0) == Some(&Token::Other('!')) {
            self.at += 1;
        }
        let (mut depth, mut held) = (0, Vec::new());
        while let Some(token) = self.peek(0).cloned() {
            self.at += 1;
            match token {
                Token::Other('[') if depth == 0 => depth = 1,
                Token::Other('[') => depth += 1,
                Token::Other(']') => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                break;
            }
            held.push(token);
        }
        held.drain(..1.min(held.len()));
        held
    }

    /// Passes the item that follows: to its semicolon, or to the end of its braces.
    fn skip_item(&mut self) {
        let mut depth = 0;
        while let Some(token) = self.peek(0).cloned() {
            self.at += 1;
            match token {
                Token::Other('{' | '(' | '[') => depth += 1,
                Token::Other(')' | ']') => depth -= 1,
                Token::Other('}') => {
                    depth -= 1;
                    if depth <= 0 {
                        self.at -= usize::from(depth < 0);
                        return;
                    }
                }
                // Of a field, a variant or a parameter.
                Token::Other(';' | ',') if depth == 0 => return,
                _ => {}
            }
        }
    }

    /// A path within an expression or a type, whose first word was read.
    fn qualified(&mut self, first: String, names: &BTreeSet<String>) {
        let mut path = vec![first];
        while self.peek(0) == Some(&Token::Path) {
            let Some(Token::Word(word)) = self.peek(1).cloned() else { break };
            path.push(word);
            self.at += 2;
        }
        if path.len() > 1
            && let Some(path) = self.absolute(&path, names)
        {
            self.file.paths.insert(path);
        }
    }

    /// What `use` declares from here on, below a prefix.
    fn tree(&mut self, prefix: &[String], is_foreign: bool, names: &BTreeSet<String>) {
        let mut path = prefix.to_vec();
        loop {
            match self.peek(0).cloned() {
                Some(Token::Word(word)) if word == "as" => {
                    let alias = self.peek(1).cloned();
                    self.at += 2;
                    if let Some(Token::Word(alias)) = alias {
                        self.declare(alias, &path, is_foreign, names);
                    }
                    return;
                }
                Some(Token::Word(word)) => {
                    self.at += 1;
                    path.push(word);
                }
                Some(Token::Path) => self.at += 1,
                Some(Token::Other('{')) => {
                    self.at += 1;
                    while self.peek(0).is_some_and(|token| *token != Token::Other('}')) {
                        self.tree(&path, is_foreign, names);
                        if self.peek(0) == Some(&Token::Other(',')) {
                            self.at += 1;
                        }
                    }
                    self.at += 1;
                    return;
                }
                Some(Token::Other('*')) => {
                    self.at += 1;
                    if !is_foreign && let Some(path) = self.absolute(&path, names) {
                        self.file.globs.push(path);
                    }
                    return;
                }
                _ => {
                    if path.last().is_some_and(|last| last == "self") && path.len() > 1 {
                        path.pop();
                    }
                    if path.len() > prefix.len() || path != prefix {
                        let name = path.last().cloned().unwrap_or_default();
                        self.declare(name, &path, is_foreign, names);
                    } else if !prefix.is_empty() {
                        let name = prefix.last().cloned().unwrap_or_default();
                        self.declare(name, prefix, is_foreign, names);
                    }
                    return;
                }
            }
        }
    }

    fn declare(&mut self, name: String, path: &[String], is_foreign: bool, names: &BTreeSet<String>) {
        if is_foreign {
            return;
        }
        if let Some(path) = self.absolute(path, names) {
            self.file.paths.insert(path.clone());
            self.file.imports.push((name, path));
        }
    }

    /// A path as it is from the crate's root on; `None` for one that leads out of the crate.
    fn absolute(&self, path: &[String], names: &BTreeSet<String>) -> Option<Module> {
        let (mut base, mut rest) = match path.first()?.as_str() {
            "crate" => (Module::new(), &path[1..]),
            "self" => (self.scope.clone(), &path[1..]),
            "super" => (self.scope.clone(), path),
            // A child, as this file calls it.
            first if names.contains(first) => (self.scope.clone(), path),
            _ => return None,
        };
        while let Some(("super", after)) = rest.split_first().map(|(first, after)| (first.as_str(), after)) {
            base.pop()?;
            rest = after;
        }
        Some([&base[..], rest].concat())
    }
}

/// Whether an attribute says that something is for tests alone.
fn is_test(attribute: &[Token]) -> bool {
    let word = |token: &Token, text: &str| matches!(token, Token::Word(word) if word == text);
    match attribute {
        [first, Token::Other('('), rest @ ..] if word(first, "cfg") => {
            rest.first().is_some_and(|token| word(token, "test"))
                || (rest.first().is_some_and(|token| word(token, "all"))
                    && rest.iter().any(|token| word(token, "test"))
                    && !rest.iter().any(|token| word(token, "not")))
        }
        _ => false,
    }
}
