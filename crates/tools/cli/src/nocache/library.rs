//! Where the library to preload is.

use std::path::{Path, PathBuf};

use anyhow::anyhow;

const NAME: &str = "libhotshelf_nocache.so";
const VARIABLE: &str = "HOTSHELF_NOCACHE_LIB";

/// As the variable says; or beside this program; or where it is installed.
pub fn find() -> anyhow::Result<PathBuf> {
    let found = match shm::environment::var_os(VARIABLE) {
        Some(given) => given_path(Path::new(&given))?,
        None => beside(&std::env::current_exe()?)?,
    };
    usable(found)
}

fn given_path(given: &Path) -> anyhow::Result<PathBuf> {
    given.canonicalize().map_err(|error| anyhow!("{VARIABLE} is {}, which cannot be used: {error}", given.display()))
}

fn beside(program: &Path) -> anyhow::Result<PathBuf> {
    let dir = program.parent().unwrap_or(Path::new("/"));
    let places = ["", "../lib", "../lib64"].map(|relative| dir.join(relative).join(NAME));
    let found = places.iter().find_map(|place| place.canonicalize().ok());
    found.ok_or_else(|| {
        let places: Vec<String> = places.iter().map(|place| place.display().to_string()).collect();
        anyhow!("{NAME} is not there ({}): run `make build`, or set {VARIABLE}", places.join(", "))
    })
}

/// The dynamic linker takes a list with spaces or colons between.
fn usable(path: PathBuf) -> anyhow::Result<PathBuf> {
    let text = path.as_os_str().as_encoded_bytes();
    if text.iter().any(|byte| b" :\t\n$".contains(byte)) {
        return Err(anyhow!(
            "{} has a space, colon or dollar in its name, which the dynamic linker does not take: copy it elsewhere and set {VARIABLE}",
            path.display()
        ));
    }
    Ok(path)
}

#[cfg(test)]
mod test {
    use std::fs;

    use super::{NAME, beside, usable};

    #[test]
    fn it_is_beside_the_program_or_where_it_is_installed() {
        let dir = tempfile::tempdir().expect("a directory");
        let root = dir.path().canonicalize().expect("its path");
        fs::create_dir_all(root.join("bin")).expect("made");
        fs::create_dir_all(root.join("lib")).expect("made");
        let program = root.join("bin/hotshelf");
        assert!(beside(&program).expect_err("not there").to_string().contains("make build"));
        fs::write(root.join("lib").join(NAME), "").expect("written");
        assert_eq!(beside(&program).expect("installed"), root.join("lib").join(NAME));
        fs::write(root.join("bin").join(NAME), "").expect("written");
        assert_eq!(beside(&program).expect("beside"), root.join("bin").join(NAME));
    }

    #[test]
    fn names_that_the_dynamic_linker_would_cut_are_refused() {
        assert!(usable("/a b/l.so".into()).is_err() && usable("/a:b/l.so".into()).is_err() && usable("/a/l.so".into()).is_ok());
    }
}
