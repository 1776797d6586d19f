//! How much is printed: `--quiet` and `--verbose`, which every command has.

use std::io::IsTerminal;
use std::sync::OnceLock;

static SET: OnceLock<(bool, bool)> = OnceLock::new();

/// Sets it, once, for the process.
pub fn set(quiet: bool, verbose: bool) {
    let _ = SET.set((quiet, verbose));
}

/// Returns whether only errors and results are printed.
pub fn is_quiet() -> bool {
    SET.get().is_some_and(|set| set.0)
}

/// Returns whether single steps are printed.
pub fn is_verbose() -> bool {
    SET.get().is_some_and(|set| set.1)
}

/// Returns whether progress is shown: on a terminal, unless the user wants quiet.
pub fn shows_progress() -> bool {
    std::io::stderr().is_terminal() && !is_quiet()
}
