//! `hotshelf cache`: caches of RAM and SSD that programs share.

pub mod args;
mod check;
mod create;
mod destroy;
mod drain;
mod evict;
mod exclusive;
pub mod files;
pub mod locate;
mod prometheus;
mod report;
mod resize;
mod serve;
mod settings;
mod show;
mod status;
mod stranded;
mod top;
mod walk;
mod warm;
pub mod why;
mod work;

use self::args::{CacheArgs, CacheCommand};
pub use self::check::check_path;
pub use self::locate::is_cache;
pub use self::report::Report;
pub use self::show::{report as show, time};
pub use self::status::{all, of as report_of, prometheus_text, status_of};

/// Runs the given `hotshelf cache` command.
pub fn cache(args: &CacheArgs) -> anyhow::Result<bool> {
    match &args.command {
        CacheCommand::Create(args) => create::create(args),
        CacheCommand::Attach(args) => serve::attach(args),
        CacheCommand::Detach(args) => serve::detach(args),
        CacheCommand::Serve(args) => serve::serve(args),
        CacheCommand::Status(args) => status::status(args),
        CacheCommand::Top(args) => top::top(args),
        CacheCommand::Flush(args) => work::flush(args),
        CacheCommand::Export(args) => stranded::export(args),
        CacheCommand::Discard(args) => stranded::discard(args),
        CacheCommand::Force(args) => stranded::force(args),
        CacheCommand::Warm(args) => warm::warm(args),
        CacheCommand::Evict(args) => evict::evict(args),
        CacheCommand::Mode(args) => work::mode(args),
        CacheCommand::Resize(args) => resize::resize(args),
        CacheCommand::Drain(args) => drain::drain(args),
        CacheCommand::Check(args) => check::check(args),
        CacheCommand::Destroy(args) => destroy::destroy(args),
    }
}

/// A bar on a terminal; nothing elsewhere.
fn bar(template: &str) -> anyhow::Result<indicatif::ProgressBar> {
    let bar = if crate::verbosity::shows_progress() { indicatif::ProgressBar::new(0) } else { indicatif::ProgressBar::hidden() };
    bar.set_style(indicatif::ProgressStyle::with_template(template)?);
    Ok(bar)
}

/// Bytes as people read them.
pub fn size(bytes: u64) -> String {
    indicatif::BinaryBytes(bytes).to_string()
}
