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

/// Copies the files of all statements. In each `{NAME}` becomes the text of `parts/NAME.sql`.
fn write_out_statements(from: &Path, to: &Path) -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed={}", from.display());
    if to.exists() {
        fs::remove_dir_all(to)?;
    }
    let mut parts = Vec::new();
    for part in sql_files(&from.join("parts"))? {
        let name = part.file_stem().unwrap_or_default().display();
        parts.push((format!("{{{name}}}"), fs::read_to_string(&part)?));
    }
    for folder in ["both", "postgres", "postgres-only", "sqlite", "sqlite-only"] {
        fs::create_dir_all(to.join(folder))?;
        for file in sql_files(&from.join(folder))? {
            let statement = fs::read_to_string(&file)?;
            let whole =
                parts.iter().fold(statement, |text, (name, part)| text.replace(name, part.trim_end()));
            fs::write(to.join(folder).join(file.file_name().unwrap_or_default()), whole)?;
        }
    }
    Ok(())
}

/// In the order of their names.
fn sql_files(folder: &Path) -> Result<Vec<PathBuf>, Box<dyn Error>> {
    let mut files =
        fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>, Box<dyn Error>>>()?;
    files.retain(|file| file.extension().is_some_and(|extension| extension == "sql"));
    files.sort();
    Ok(files)
}
