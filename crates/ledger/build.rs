//! Lists the migrations: for each database an array of (file name, text), in the order of their versions. And writes the
//! statements out, each with the parts that it shares with others.

use std::error::Error;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

fn main() -> Result<(), Box<dyn Error>> {
    let (here, out) = (env::var("CARGO_MANIFEST_DIR")?, env::var("OUT_DIR")?);
    let (here, out) = (Path::new(&here), Path::new(&out));
    list_migrations(&here.join("../../migrations").canonicalize()?, &out.join("migrations.rs"))?;
    write_out_statements(&here.join("sql"), &out.join("sql"))
}

fn list_migrations(root: &Path, list: &Path) -> Result<(), Box<dyn Error>> {
    let mut code = String::new();
    for database in ["postgres", "sqlite"] {
        let folder = root.join(database);
        println!("cargo::rerun-if-changed={}", folder.display());
        writeln!(code, "const {}_FILES: &[(&str, &str)] = &[", database.to_uppercase())?;
        for file in sql_files(&folder)? {
            let name = file.file_stem().unwrap_or_default();
            writeln!(code, "    ({name:?}, include_str!({file:?})),")?;
        }
        writeln!(code, "];")?;
    }
    Ok(fs::write(list, code)?)
}

/// Copies the files of all statements, those of `both` for each database, with the texts of parts in place of their marks.
fn write_out_statements(from: &Path, to: &Path) -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed={}", from.display());
    if to.exists() {
        fs::remove_dir_all(to)?;
    }
    for database in ["postgres", "sqlite"] {
        let parts = parts(&from.join("parts"), database)?;
        let only = format!("{database}-only");
        let both = (from.join("both"), to.join("both").join(database));
        let own = [database, only.as_str()].map(|folder| (from.join(folder), to.join(folder)));
        for (from, to) in own.into_iter().chain([both]) {
            fs::create_dir_all(&to)?;
            for file in sql_files(&from)? {
                let whole = with_parts(fs::read_to_string(&file)?, &parts);
                fs::write(to.join(file.file_name().unwrap_or_default()), whole)?;
            }
        }
    }
    Ok(())
}

/// The parts of a database's statements: the mark of each, and its text. The mark of `NAME.sql` is `{NAME}`, and so is that of
/// `NAME_DATABASE.sql`, which the database has in words of its own. A part may have marks of those before it in the order of
/// their names.
fn parts(folder: &Path, database: &str) -> Result<Vec<(String, String)>, Box<dyn Error>> {
    let mut parts = Vec::<(String, String)>::new();
    for file in sql_files(folder)? {
        let name = file.file_stem().unwrap_or_default().display().to_string();
        let shared = name.strip_suffix(database).and_then(|name| name.strip_suffix('_')).unwrap_or(&name);
        let text = with_parts(fs::read_to_string(&file)?, &parts).trim_end().to_owned();
        parts.push((format!("{{{shared}}}"), text));
    }
    Ok(parts)
}

fn with_parts(text: String, parts: &[(String, String)]) -> String {
    parts.iter().fold(text, |text, (mark, part)| text.replace(mark, part))
}

/// In the order of their names.
fn sql_files(folder: &Path) -> Result<Vec<PathBuf>, Box<dyn Error>> {
    let mut files =
        fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>, Box<dyn Error>>>()?;
    files.retain(|file| file.extension().is_some_and(|extension| extension == "sql"));
    files.sort();
    Ok(files)
}
