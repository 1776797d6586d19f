//! Which requirements of an experiment the machine does not meet, and how to meet them.

use std::path::Path;

use crate::experiment::Need;
use crate::lab::{memory, throttle};
use crate::programs::find;

impl Need {
    /// Returns what is missing and how to get it. `None`: the requirement is met.
    pub fn lacks(self) -> Option<String> {
        let absent = |path: &str| !Path::new(path).exists();
        match self {
            Need::Root => (!rustix::process::geteuid().is_root()).then(|| "it needs root: run it with sudo".into()),
            Need::Loop => absent("/dev/loop-control").then(|| "there are no loop devices here: modprobe loop".into()),
            Need::Fuse => absent("/dev/fuse").then(|| "there is no /dev/fuse: modprobe fuse".into()),
            Need::Program(program, package) => missing(&[(program, package)]),
            Need::Throttle => throttle::why_not(),
            Need::LittleMemory => memory::why_not(),
        }
    }
}

/// Returns which programs are missing, and the one command that installs them.
fn missing(programs: &[(&str, &str)]) -> Option<String> {
    let absent: Vec<(&str, &str)> = programs.iter().copied().filter(|(program, _)| find(program).is_none()).collect();
    let names: Vec<&str> = absent.iter().map(|(program, _)| *program).collect();
    let mut packages: Vec<&str> = absent.iter().map(|(_, package)| *package).collect();
    packages.dedup();
    let it = if names.len() == 1 { "it" } else { "them" };
    (!names.is_empty()).then(|| format!("missing: {}; install {it}: apt install {}", names.join(", "), packages.join(" ")))
}

/// Returns the requirements that are not met.
pub(crate) fn lacks(needs: &[Need]) -> Vec<String> {
    let program = |need: &Need| if let Need::Program(program, package) = *need { Some((program, package)) } else { None };
    let others = needs.iter().filter(|need| program(need).is_none()).filter_map(|need| need.lacks());
    let programs: Vec<(&str, &str)> = needs.iter().filter_map(program).collect();
    others.chain(missing(&programs)).collect()
}

/// Returns the versions of the required programs.
pub(crate) fn versions(needs: &[Need]) -> Vec<String> {
    let version = |need: &Need| {
        let Need::Program(program, _) = need else { return None };
        let out = std::process::Command::new(find(program)?).arg("--version").stdin(std::process::Stdio::null()).output().ok()?;
        let said = String::from_utf8_lossy(if out.stdout.is_empty() { &out.stderr } else { &out.stdout }).into_owned();
        let line = said.lines().next()?.trim().to_owned();
        out.status.success().then(|| if line.contains(program) { line } else { format!("{program} {line}") })
    };
    needs.iter().filter_map(version).collect()
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn what_is_missing_says_how_to_get_it() {
        assert_eq!(Need::Program("sh", "dash").lacks(), None);
        let said = Need::Program("no-such-program", "its-package").lacks().expect("missing");
        assert!(said.contains("no-such-program") && said.contains("apt install its-package"), "{said}");
    }

    #[test]
    fn several_programs_are_one_command() {
        const NEEDS: &[Need] = &[
            Need::Program("no-such-client", "their-package"),
            Need::Program("sh", "dash"),
            Need::Program("no-such-server", "their-package"),
        ];
        assert_eq!(lacks(NEEDS), ["missing: no-such-client, no-such-server; install them: apt install their-package"]);
    }
}
