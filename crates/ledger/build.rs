//! Lists the migrations: for each database an array of (file name, text), in the order of their versions.

use std::error::Error;
use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs};

fn main() -> Result<(), Box<dyn Error>> {
    let root = Path::new(&env::var("CARGO_MANIFEST_DIR")?).join("../../migrations").canonicalize()?;
    let mut code = String::new();
    for database in ["postgres", "sqlite"] {
        let folder = root.join(database);
        println!("cargo::rerun-if-changed={}", folder.display());
        let mut files = fs::read_dir(folder)?
            .map(|entry| Ok(entry?.path()))
            .collect::<Result<Vec<_>, Box<dyn Error>>>()?;
        files.retain(|file| file.extension().is_some_and(|extension| extension == "sql"));
        files.sort();
        writeln!(code, "const {}_FILES: &[(&str, &str)] = &[", database.to_uppercase())?;
        for file in files {
            let name = file.file_stem().unwrap_or_default();
            writeln!(code, "    ({name:?}, include_str!({file:?})),")?;
        }
        writeln!(code, "];")?;
    }
    fs::write(Path::new(&env::var("OUT_DIR")?).join("migrations.rs"), code)?;
    Ok(())
}
