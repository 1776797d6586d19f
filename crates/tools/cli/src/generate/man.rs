//! Man pages: section 1 from the definitions of the commands, section 5 from the reference pages of the configuration files.

use std::fmt::Write;
use std::path::Path;

use anyhow::Context;
use clap::{Command, CommandFactory};

use crate::args::Cli;

/// The pages of section 5: name, what it is, and the document that it is made of.
const FILES: [(&str, &str, &str); 2] = [
    (
        "hotshelf-mount.toml",
        "configuration file of a hotshelf mount",
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/reference/mount-configuration.md")),
    ),
    (
        "hotshelf-cache.toml",
        "configuration file of a hotshelf cache and of programs that use it",
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/reference/cache-configuration.md")),
    ),
];

/// Files that a group of commands reads and writes, beside those that its arguments name.
const PATHS: [(&str, &str); 5] = [
    (
        "mount",
        ".TP\n.I SSD/.hotshelf, HDD/.hotshelf\nIdentity, journal, history, log and control socket of the pair.\n\
         .TP\n.I /etc/hotshelf/NAME.toml\nSettings of the unit hotshelf@NAME.service.\n",
    ),
    (
        "cache",
        ".TP\n.I ~/.config/hotshelf/caches/NAME.toml, /etc/hotshelf/caches/NAME.toml\nSettings of a cache: of a user, of root.\n\
         .TP\n.I /dev/shm/hotshelf\\-UID/NAME.segment\nShared memory of a cache in use.\n",
    ),
    (
        "queue",
        ".TP\n.I /run/hotshelf/queues.sock, $XDG_RUNTIME_DIR/hotshelf/queues.sock\nSocket of the broker.\n\
         .TP\n.I /var/lib/hotshelf/grants, $XDG_STATE_HOME/hotshelf/grants\nJournal of grants.\n",
    ),
    ("nvme", ".TP\n.I /dev/vfio/GROUP\nThe IOMMU group of a drive that is bound to vfio\\-pci.\n"),
    ("fs", ".TP\n.I IMAGE\nA file or a block device. One process has it at a time.\n"),
];

const EXIT: &str = ".SH EXIT STATUS\n.TP\n.B 0\nThe command did what was requested.\n.TP\n.B 1\n\
                    It failed, or what it checked is wrong. One line on standard error says what happened and what to do.\n\
                    .TP\n.B 2\nThe command line is wrong. Nothing was done.\n";

const SIZES: &str = ".SH SIZES AND DURATIONS\nA size is a number of bytes, or has a unit of 1024: 512MiB, 10GiB. Where the option's text \
                     says so it is a share: 80%. A duration has a unit: 30s, 5m, 1h.\n";

/// Writes every page into a directory.
pub fn write(dir: &Path) -> anyhow::Result<()> {
    let mut root = Cli::command();
    root.build();
    let names: Vec<String> = root.get_subcommands().filter(|sub| !sub.is_hide_set()).map(page_name).collect();
    add(dir, &root, &names)?;
    for (name, about, document) in FILES {
        let page = dir.join(format!("{name}.5"));
        std::fs::write(&page, section_5(name, about, document)).with_context(|| format!("{}", page.display()))?;
    }
    Ok(())
}

/// Writes the page of a command, then those of the commands below it. `related` are the pages of its siblings.
fn add(dir: &Path, command: &Command, related: &[String]) -> anyhow::Result<()> {
    if command.get_name() == "help" || command.is_hide_set() {
        return Ok(());
    }
    let name = page_name(command);
    let mut page = Vec::new();
    clap_mangen::Man::new(command.clone().display_name(name.clone())).render(&mut page).context("writing man pages")?;
    let children: Vec<String> = command.get_subcommands().filter(|sub| !sub.is_hide_set()).map(page_name).collect();
    let see = if children.is_empty() { related } else { &children };
    let mut text = String::from_utf8(page).context("writing man pages")?.replace(".SH EXTRA", ".SH EXAMPLES AND NOTES");
    text += &appendix(command, &name, see);
    let path = dir.join(format!("{name}.1"));
    std::fs::write(&path, text).with_context(|| format!("{}", path.display()))?;
    command.get_subcommands().try_for_each(|sub| add(dir, sub, &children))
}

fn page_name(command: &Command) -> String {
    command.get_bin_name().unwrap_or_else(|| command.get_name()).replace(' ', "-")
}

/// Returns what every page says at its end: sizes, exit status, files, and related pages.
fn appendix(command: &Command, name: &str, related: &[String]) -> String {
    let takes_size = command.get_arguments().any(|arg| {
        let names = arg.get_value_names().unwrap_or_default();
        names.iter().any(|name| matches!(name.as_str(), "SIZE" | "TIME" | "NAME=VALUE"))
    });
    let group = name.split('-').nth(1).unwrap_or_default();
    let group =
        if matches!(group, "unmount" | "status" | "why" | "pin" | "unpin" | "migrate" | "set" | "retire") { "mount" } else { group };
    let mut text = if takes_size { SIZES.to_owned() } else { String::new() };
    text += EXIT;
    if let Some((_, paths)) = PATHS.iter().find(|(of, _)| *of == group) {
        let _ = write!(text, ".SH FILES\n{paths}");
    }
    let mut pages: Vec<String> = related.iter().filter(|page| *page != name && !page.ends_with("-help")).cloned().collect();
    pages.sort();
    if name != "hotshelf" {
        pages.insert(0, "hotshelf".to_owned());
    }
    let mut pages: Vec<String> = pages.iter().map(|page| format!(".BR {} (1)", page.replace('-', "\\-"))).collect();
    match group {
        "mount" => pages.push(".BR hotshelf\\-mount.toml (5)".to_owned()),
        "cache" => pages.push(".BR hotshelf\\-cache.toml (5)".to_owned()),
        _ => {}
    }
    pages.push(".BR hotshelf (3)".to_owned());
    let _ = write!(text, ".SH SEE ALSO\n{}\n", pages.join(" ,\n"));
    text
}

/// Returns a page of section 5, made of a document in Markdown: headings, tables, lists, code and paragraphs.
fn section_5(name: &str, about: &str, document: &str) -> String {
    let mut text = format!(".TH {} 5 \"\" \"hotshelf\" \"File Formats\"\n", name.to_uppercase().replace('-', "\\-"));
    let _ = write!(text, ".SH NAME\n{} \\- {about}\n.SH DESCRIPTION\n", name.replace('-', "\\-"));
    let (mut code, mut head) = (false, Vec::new());
    for line in document.lines().skip(1) {
        if line.starts_with("```") {
            code = !code;
            text += if code { ".PP\n.nf\n" } else { ".fi\n.PP\n" };
        } else if code {
            text += &format!("{}\n", escape(line));
        } else if let Some(heading) = line.strip_prefix("## ").or_else(|| line.strip_prefix("### ")) {
            let _ = writeln!(text, ".SH {}", escape(&plain(heading)).to_uppercase());
        } else if line.starts_with("|---") || line.starts_with("<!--") {
        } else if let Some(row) = line.strip_prefix('|') {
            let cells: Vec<String> = row.trim_end_matches('|').split(" |").map(|cell| plain(cell.trim())).collect();
            match head.is_empty() {
                true => head = cells,
                false => text += &entry(&head, &cells),
            }
            continue;
        } else if line.is_empty() {
            text += if text.ends_with(".PP\n") || text.ends_with("DESCRIPTION\n") { "" } else { ".PP\n" };
        } else {
            text += &format!("{}\n", escape(&plain(line)));
        }
        if !line.starts_with("|---") {
            head.clear();
        }
    }
    text += ".SH SEE ALSO\n.BR hotshelf (1) ,\n.BR hotshelf\\-mount (1) ,\n.BR hotshelf\\-cache (1) ,\n.BR hotshelf (3)\n";
    text
}

/// Returns a row of a table: the first cell as a term, the last as its text, those between in brackets with their heads.
fn entry(head: &[String], cells: &[String]) -> String {
    let [term, between @ .., meaning] = cells else { return String::new() };
    let heads = head.iter().skip(1);
    let notes: Vec<String> =
        heads.zip(between).map(|(head, cell)| if head == "type" { cell.clone() } else { format!("{head}: {cell}") }).collect();
    let notes = if notes.is_empty() { String::new() } else { format!(" [{}]", notes.join("; ")) };
    let mut meaning = meaning.clone();
    if let Some(first) = meaning.get(..1) {
        meaning = first.to_uppercase() + &meaning[1..];
    }
    format!(".TP\n.B {}\n{}.{}\n", escape(term), escape(meaning.trim_end_matches('.')), escape(&notes))
}

/// Returns Markdown without its marks: code, emphasis and the targets of links.
fn plain(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("](") {
        out += &before.replacen('[', "", 1);
        rest = after.split_once(')').map_or("", |(_, rest)| rest);
    }
    (out + rest).replace(['`', '*'], "")
}

fn escape(text: &str) -> String {
    let text = text.replace('\\', "\\\\").replace('-', "\\-");
    if text.starts_with(['.', '\'']) { format!("\\&{text}") } else { text }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn every_command_has_a_page_with_exit_status_and_related_pages() {
        let dir = tempfile::tempdir().expect("a directory");
        write(dir.path()).expect("written");
        let page = |name: &str| std::fs::read_to_string(dir.path().join(name)).expect("a page");
        for (name, parts) in [
            ("hotshelf.1", vec![".SH EXIT STATUS", "hotshelf\\-mount (1)"]),
            ("hotshelf-mount.1", vec![".SH SIZES", ".SH FILES", "hotshelf\\-mount.toml (5)", ".SH EXAMPLES"]),
            ("hotshelf-cache-create.1", vec![".SH SIZES", "caches/NAME.toml", "hotshelf\\-cache\\-status (1)"]),
            ("hotshelf-mount.toml.5", vec![".B touch\\-window\n", "[seconds; default: 86400]", ".SH FILES"]),
            ("hotshelf-cache.toml.5", vec![".B dirty_age\n", ".nf\n[cache]\n", ".SH [LIBRARY]"]),
        ] {
            let text = page(name);
            for part in parts {
                assert!(text.contains(part), "{name} lacks {part}:\n{text}");
            }
        }
        assert!(!dir.path().join("hotshelf-help.1").exists() && !dir.path().join("hotshelf-generate.1").exists());
    }

    #[test]
    fn marks_of_markdown_are_left_out() {
        assert_eq!(plain("see [the page](a.md) of `x` and [b](c)."), "see the page of x and b.");
        assert_eq!(escape(".5-"), "\\&.5\\-");
    }
}
