//! Dependencies point down only: a crate names only crates of lower layers (DESIGN: "The house").

use toml::{Table, Value};

use crate::tree::{Finding, Tree};

/// Lowest first. Crates of one layer do not know each other.
const LAYERS: &[&[&str]] = &[
    &["shm", "policy", "fusedev", "sizes"],
    &["block", "pci"],
    &["pagecache", "ssdcache", "nvme"],
    &["datapath"],
    &["rawfs", "hybridfs", "directoryfs", "cachedfs"],
    &["stack"],
    &["mount", "preload", "capi", "sqlitevfs"],
    &["bench"],
    &["cli"],
];

/// The folders below `crates`, lowest layer first, and the crates of each. The README of a folder says what may not be in it.
const FOLDERS: &[(&str, &[&str])] = &[
    ("base", &["shm", "policy", "fusedev", "sizes"]),
    ("devices", &["block", "pci", "nvme"]),
    ("cache", &["pagecache", "ssdcache", "datapath", "cachedfs"]),
    ("filesystems", &["rawfs", "hybridfs", "directoryfs"]),
    ("frontends", &["stack", "mount", "preload", "capi", "sqlitevfs"]),
    ("tools", &["bench", "cli", "nocache", "sim"]),
];

/// Depends on what it models (anything below the front doors); only tests may depend on it, and the experiments,
/// which measure on models of devices that the machine lacks.
const MODELS: &str = "sim";
const MEASURES_MODELS: &str = "bench";

/// Depends on no crate of the workspace, and no crate depends on it.
const ALONE: &[&str] = &["xtask", "nocache"];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Layer(usize),
    Models,
    Alone,
}

fn place(name: &str) -> Option<Place> {
    if name == MODELS {
        return Some(Place::Models);
    }
    if ALONE.contains(&name) {
        return Some(Place::Alone);
    }
    LAYERS.iter().position(|layer| layer.contains(&name)).map(Place::Layer)
}

/// Reads every manifest.
pub fn lint(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let ours: Vec<String> = tree.crates().filter_map(|(_, manifest)| Some(name_of(&manifest)?.to_owned())).collect();
    for (dir, manifest) in tree.crates() {
        let Some(name) = name_of(&manifest) else { continue };
        let at = format!("{dir}/Cargo.toml");
        let Some(from) = place(name) else {
            let what = format!("`{name}` has no layer: give it one in xtask/src/tidy/layers.rs and in ARCHITECTURE.md");
            findings.push(Finding::file(&at, what));
            continue;
        };
        if let Some((folder, _)) = FOLDERS.iter().find(|(_, crates)| crates.contains(&name))
            && dir != format!("crates/{folder}/{name}")
        {
            findings.push(Finding::file(&at, format!("`{name}` belongs to the folder crates/{folder}")));
        }
        for (section, dependency) in dependencies(&manifest) {
            if !ours.contains(&dependency) || dependency == name {
                continue;
            }
            if let Some(to) = place(&dependency)
                && let Err(why) = may(from, to, section == "dev-dependencies")
            {
                findings.push(Finding::file(&at, format!("`{name}` depends on `{dependency}` ({section}): {why}")));
            }
        }
    }
    findings
}

fn may(from: Place, to: Place, in_tests: bool) -> Result<(), &'static str> {
    let front_doors = LAYERS.iter().position(|layer| layer.contains(&"mount")).unwrap_or(LAYERS.len());
    match (from, to) {
        (Place::Alone, _) | (_, Place::Alone) => Err("one of them stands alone"),
        (_, Place::Models) if in_tests => Ok(()),
        (Place::Layer(from), Place::Models) if LAYERS[from].contains(&MEASURES_MODELS) => Ok(()),
        (_, Place::Models) => Err("only tests and experiments may depend on the simulator"),
        (Place::Models, Place::Layer(to)) if to < front_doors => Ok(()),
        (Place::Layer(from), Place::Layer(to)) if to < from => Ok(()),
        _ => Err("dependencies point down only: move what is needed to a lower layer, or hand it in as an argument"),
    }
}

fn name_of(manifest: &Table) -> Option<&str> {
    manifest.get("package")?.get("name")?.as_str()
}

/// Every dependency as (section, crate), of all targets.
fn dependencies(manifest: &Table) -> Vec<(&'static str, String)> {
    let mut found = Vec::new();
    let targets = manifest.get("target").and_then(Value::as_table);
    let tables = std::iter::once(manifest).chain(targets.into_iter().flat_map(|all| all.values()).filter_map(Value::as_table));
    for table in tables {
        for section in ["dependencies", "dev-dependencies", "build-dependencies"] {
            let Some(entries) = table.get(section).and_then(Value::as_table) else { continue };
            for (key, entry) in entries {
                let name = entry.get("package").and_then(Value::as_str).unwrap_or(key);
                found.push((section, name.to_owned()));
            }
        }
    }
    found
}

#[cfg(test)]
mod test {
    use super::*;

    fn findings(manifests: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<(String, String)> = manifests
            .iter()
            .map(|(name, rest)| {
                let folder = FOLDERS.iter().find(|(_, crates)| crates.contains(name)).map_or("other", |(folder, _)| folder);
                (format!("crates/{folder}/{name}/Cargo.toml"), format!("[package]\nname = \"{name}\"\n{rest}"))
            })
            .collect();
        let files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
        lint(&Tree::of(&files)).into_iter().map(|finding| finding.what).collect()
    }

    #[test]
    fn downwards_is_right() {
        let found = findings(&[
            ("policy", "[dependencies]\nlibloading = \"1\"\n"),
            ("hybridfs", "[dependencies]\npolicy.workspace = true\n"),
            ("mount", "[dependencies]\nhybridfs.workspace = true\n[dev-dependencies]\nsim.workspace = true\n"),
            ("bench", "[dependencies]\nmount.workspace = true\n"),
            ("cli", "[dependencies]\nbench.workspace = true\nmount.workspace = true\npolicy.workspace = true\n"),
            ("sim", "[dependencies]\nhybridfs.workspace = true\n"),
            ("xtask", ""),
        ]);
        assert_eq!(found, Vec::<String>::new());
    }

    #[test]
    fn upwards_sideways_and_to_the_simulator_is_wrong() {
        let wrong = [
            ("policy", "[dependencies]\nhybridfs.workspace = true\n"),
            ("hybridfs", "[target.'cfg(unix)'.dependencies]\nmount.workspace = true\n"),
            ("mount", "[build-dependencies]\nbelow = { package = \"sim\", workspace = true }\n"),
            ("rawfs", "[dependencies]\nhybridfs.workspace = true\n"),
            ("cli", "[dev-dependencies]\nxtask.workspace = true\n"),
            ("sim", "[dependencies]\nmount.workspace = true\n"),
        ];
        let mut all = wrong.to_vec();
        all.push(("xtask", ""));
        assert_eq!(findings(&all).len(), wrong.len(), "{:?}", findings(&all));
    }

    #[test]
    fn a_crate_in_the_folder_of_another_layer_is_wrong() {
        let found = lint(&Tree::of(&[("crates/cache/shm/Cargo.toml", "[package]\nname = \"shm\"\n")]));
        assert_eq!(found.len(), 1);
        assert!(found[0].what.contains("crates/base"));
    }

    #[test]
    fn an_unknown_crate_needs_a_layer() {
        assert!(findings(&[("surprise", "")])[0].contains("no layer"));
    }
}
