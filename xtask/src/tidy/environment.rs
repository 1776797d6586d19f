//! The environment is read in one place, which does not obey the caller of a set-uid program.

use crate::tree::{Finding, Tree};

/// The only readers: `shm` for every crate, and `nocache`, which depends on no other crate. Both check AT_SECURE.
const ALLOWED: &[&str] = &["crates/base/shm/src/environment.rs", "crates/tools/nocache/src/config.rs"];

/// Every way to read it.
const CALLS: &[&str] =
    &["env::var(", "env::var_os(", "env::vars(", "env::vars_os(", "env::temp_dir", "env::home_dir", "getenv(", "libc::environ"];

/// Looks at the product's sources: tests run with the rights of the developer who starts them.
pub fn lint(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let tests = test_modules(tree);
    for (path, text) in tree.texts() {
        let is_source = path.starts_with("crates/") && path.contains("/src/") && path.ends_with(".rs");
        let is_product = is_source && !path.starts_with("crates/tools/sim/");
        if !is_product || ALLOWED.contains(&path) || tests.iter().any(|test| path == format!("{test}.rs") || in_folder(path, test)) {
            continue;
        }
        for (index, line) in text.lines().enumerate().take_while(|(_, line)| !is_test_attribute(line)) {
            let code = line.split("//").next().unwrap_or_default();
            let called = CALLS.iter().find(|call| code.contains(*call));
            if let Some(call) = called {
                let call = call.trim_end_matches('(');
                let what = format!("`{call}` obeys the caller of a set-uid program: use `shm::environment`");
                findings.push(Finding::line(path, index, what));
            }
        }
    }
    findings
}

fn in_folder(path: &str, folder: &str) -> bool {
    path.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'))
}

fn is_test_attribute(line: &str) -> bool {
    let line = line.trim_start();
    line.starts_with("#[cfg(test)]") || line.starts_with("#[cfg(all(test")
}

/// Modules that only tests have: files and folders, without their ending.
fn test_modules(tree: &Tree) -> Vec<String> {
    let mut found = Vec::new();
    for (path, text) in tree.texts().filter(|(path, _)| path.ends_with(".rs")) {
        let (folder, file) = path.rsplit_once('/').unwrap_or(("", path));
        let stem = file.trim_end_matches(".rs");
        let folder = if matches!(stem, "lib" | "main" | "mod") { folder.to_owned() } else { format!("{folder}/{stem}") };
        let mut is_test = false;
        for line in text.lines().map(str::trim) {
            let name = line.trim_start_matches("pub(crate) ").trim_start_matches("pub ").strip_prefix("mod ");
            if let Some(name) = name.and_then(|rest| rest.strip_suffix(';')).filter(|_| is_test) {
                found.push(format!("{folder}/{name}"));
            }
            is_test = is_test_attribute(line) || (is_test && line.starts_with("#["));
        }
    }
    found
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn the_one_place_and_tests_are_right() {
        let tree = Tree::of(&[
            ("crates/base/shm/src/environment.rs", "std::env::var_os(name)\n"),
            (
                "crates/tools/cli/src/main.rs",
                "// std::env::var(\nlet a = shm::environment::var(\"A\");\n#[cfg(test)]\nmod test {\n env::var(\"SEED\")\n}\n",
            ),
            ("crates/tools/cli/tests/command.rs", "std::env::var(\"FULL\")\n"),
            ("crates/devices/block/src/lib.rs", "#[cfg(all(test, not(loom)))]\n#[allow(x)]\nmod hostile;\n"),
            ("crates/devices/block/src/hostile.rs", "std::env::var(\"FULL\")\n"),
            ("crates/devices/block/src/hostile/more.rs", "std::env::var(\"FULL\")\n"),
        ]);
        assert_eq!(lint(&tree), []);
    }

    #[test]
    fn every_way_to_read_it_is_found() {
        for call in CALLS {
            assert_eq!(lint(&Tree::of(&[("crates/tools/cli/src/main.rs", &format!("let a = {call}\"A\");\n"))])).len(), 1, "{call}");
        }
    }
}
