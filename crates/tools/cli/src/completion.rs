//! Completes names of mounts and caches in bash, zsh and fish.
//!
//! The generated scripts call `hotshelf complete`, which prints one name a line. It asks no daemon and reads no settings, so that a
//! shell never waits for one that hangs. Names may have any characters: the scripts compare and quote them, and expand none.

use std::fmt::Write;

use cachedfs::Config;
use clap::{Arg, Command, CommandFactory, ValueHint};

use crate::args::{Cli, CompleteArgs, NameKind};

/// Names that are offered at most.
const NAMES_MAX: usize = 256;
const NAME_BYTES_MAX: usize = 1024;

/// Prints the names that a shell may offer, one a line.
pub fn complete(args: &CompleteArgs) -> anyhow::Result<bool> {
    let mut names = Vec::new();
    if args.kind != NameKind::Mounts {
        names.extend(caches());
    }
    if args.kind != NameKind::Caches {
        names.extend(mounts());
    }
    for name in names.iter().filter(|name| is_offered(name)).take(NAMES_MAX) {
        say!("{name}");
    }
    Ok(true)
}

/// Returns whether a name can be shown unchanged on one line of a terminal.
fn is_offered(name: &str) -> bool {
    !name.is_empty() && name.len() <= NAME_BYTES_MAX && *crate::terminal::line(name) == *name
}

/// Returns the names of the caches that have settings.
fn caches() -> Vec<String> {
    let entries = std::fs::read_dir(Config::dir()).into_iter().flatten().flatten();
    let name = |file: std::fs::DirEntry| file.file_name().to_str()?.strip_suffix(".toml").map(str::to_owned);
    let mut names: Vec<String> = entries.filter_map(name).filter(|name| Config::is_name(name)).collect();
    names.sort();
    names
}

/// Returns the mount points of the caller, and for root those of all users.
fn mounts() -> Vec<String> {
    let me = rustix::process::geteuid();
    let all = mount::source::mounted().unwrap_or_default();
    let own = all.into_iter().filter(|mounted| me.is_root() || mounted.owner == me.as_raw());
    own.filter_map(|mounted| mounted.mountpoint.into_os_string().into_string().ok()).collect()
}

/// Returns which names an argument takes; `None`: no names of mounts or caches.
fn kind_of(path: &str, arg: &Arg) -> Option<NameKind> {
    let is_cache = arg.get_value_names().is_some_and(|names| names.iter().any(|name| name.contains("CACHE")));
    let is_mount = arg.get_id() == "mountpoint";
    match (path, is_mount, is_cache) {
        // These get what is not there yet.
        ("mount" | "cache-create", ..) => None,
        (_, true, true) => Some(NameKind::All),
        (_, true, false) => Some(NameKind::Mounts),
        (_, false, true) => Some(NameKind::Caches),
        (_, false, false) => None,
    }
}

/// Calls `visit` with each subcommand, one and two levels deep, and its name: `cache-top`.
fn for_each_command(visit: &mut dyn FnMut(&str, &Command)) {
    let mut cli = Cli::command();
    cli.build();
    for command in cli.get_subcommands() {
        for name in std::iter::once(command.get_name()).chain(command.get_all_aliases()) {
            visit(name, command);
        }
        for sub in command.get_subcommands() {
            visit(&format!("{}-{}", command.get_name(), sub.get_name()), sub);
        }
    }
}

/// Returns the tables of bash: `COMMAND:POSITION=KIND` or `COMMAND:--OPTION=KIND`, and `COMMAND:--OPTION` of options with a value.
fn bash_tables() -> (Vec<String>, Vec<String>) {
    let (mut named, mut valued) = (Vec::new(), Vec::new());
    for_each_command(&mut |path, command| {
        for (position, arg) in command.get_positionals().enumerate() {
            if let Some(kind) = kind_of(path, arg) {
                named.push(format!("{path}:{position}={}", kind.word()));
            }
        }
        for arg in command.get_opts() {
            let words = arg.get_long().map(|long| format!("--{long}")).into_iter().chain(arg.get_short().map(|short| format!("-{short}")));
            for word in words {
                if let Some(kind) = kind_of(path, arg) {
                    named.push(format!("{path}:{word}={}", kind.word()));
                }
                valued.push(format!("{path}:{word}"));
            }
        }
    });
    (named, valued)
}

/// Returns what is appended to the script of bash.
pub fn bash() -> String {
    let (named, valued) = bash_tables();
    format!(
        r#"
# Names of mounts and caches. `compgen -W` would expand what is in them.
_hotshelf_named="{named}"
_hotshelf_valued="{valued}"
_hotshelf_or_names() {{
    local cur=$2 prev=$3 command= last= kind= count=0 index word entry name quoted
    for ((index = 1; index < COMP_CWORD; index++)); do
        word=${{COMP_WORDS[index]}}
        if [[ $word == -* ]]; then
            :
        elif [[ -z $command || $command == cache ]]; then
            command+=${{command:+-}}$word
        elif [[ " $_hotshelf_valued " != *" $command:$last "* ]]; then
            count=$((count + 1))
        fi
        last=$word
    done
    if [[ $cur != -* && $command == *([a-z0-9-]) ]]; then
        word=$count
        if [[ " $_hotshelf_valued " == *" $command:$prev "* ]]; then
            word=$prev
        fi
        for entry in $_hotshelf_named; do
            if [[ ${{entry%=*}} == "$command:$word" ]]; then
                kind=${{entry##*=}}
            fi
        done
    fi
    COMPREPLY=()
    if [[ -n $kind ]]; then
        while IFS= read -r name; do
            printf -v quoted %q "$name"
            # Readline completes only what is behind a colon or an equals sign.
            if [[ $name != *[:=]* && ($name == "$cur"* || $quoted == "$cur"*) ]]; then
                COMPREPLY+=("$quoted")
            fi
        done < <(command hotshelf complete "$kind" 2>/dev/null)
    fi
    if ((${{#COMPREPLY[@]}} == 0)); then
        _hotshelf "$@"
    fi
}}
if [[ "${{BASH_VERSINFO[0]}}" -eq 4 && "${{BASH_VERSINFO[1]}}" -ge 4 || "${{BASH_VERSINFO[0]}}" -gt 4 ]]; then
    complete -F _hotshelf_or_names -o nosort -o bashdefault -o default hotshelf
else
    complete -F _hotshelf_or_names -o bashdefault -o default hotshelf
fi
"#,
        named = named.join(" "),
        valued = valued.join(" ")
    )
}

/// Hints that no argument has, in whose place [`zsh`] puts the names.
const ZSH_HINTS: [(NameKind, ValueHint, &str); 3] = [
    (NameKind::Mounts, ValueHint::Hostname, ":_hosts'"),
    (NameKind::Caches, ValueHint::Username, ":_users'"),
    (NameKind::All, ValueHint::EmailAddress, ":_email_addresses'"),
];

/// Returns the commands as the script of zsh is made from.
pub fn for_zsh() -> Command {
    let hinted = |path: &str, command: Command| {
        let path = path.to_owned();
        command.mut_args(move |arg| {
            let kind = kind_of(&path, &arg);
            match ZSH_HINTS.iter().find(|(hinted, ..)| Some(*hinted) == kind) {
                Some((_, hint, _)) => arg.value_hint(*hint),
                None => arg,
            }
        })
    };
    Cli::command().mut_subcommands(|command| {
        let name = command.get_name().to_owned();
        hinted(&name, command).mut_subcommands(|sub| {
            let path = format!("{name}-{}", sub.get_name());
            hinted(&path, sub)
        })
    })
}

/// Puts names into the script of zsh, which was made from [`for_zsh`].
pub fn zsh(script: &str) -> String {
    let mut script = script.to_owned();
    for (kind, _, action) in ZSH_HINTS {
        script = script.replace(action, &format!(":_hotshelf_names {}'", kind.word()));
    }
    let functions = r#"(( $+functions[_hotshelf_names] )) ||
_hotshelf_names() {
    local kind=$argv[-1]
    local -a names
    names=(${(f)"$(command hotshelf complete $kind 2>/dev/null)"})
    compadd "${@[1,-2]}" -a names
    [[ $kind == mounts ]] || _files
}

"#;
    let end = script.rfind("if [ \"$funcstack[1]\"").unwrap_or(script.len());
    script.insert_str(end, functions);
    script
}

/// Returns what is appended to the script of fish: values of arguments without an option, which clap_complete leaves out, and names.
pub fn fish() -> String {
    let mut text = String::new();
    for_each_command(&mut |path, command| {
        let when = match path.split_once('-') {
            Some(("cache", sub)) => format!("__fish_hotshelf_using_subcommand cache; and __fish_seen_subcommand_from {sub}"),
            _ => format!("__fish_hotshelf_using_subcommand {path}"),
        };
        let values = command.get_positionals().flat_map(Arg::get_possible_values);
        let values: Vec<String> = values.map(|value| value.get_name().to_owned()).collect();
        if !values.is_empty() && !path.contains('-') && path != "umount" {
            let _ = writeln!(text, "complete -c hotshelf -n \"{when}\" -a \"{}\"", values.join(" "));
        }
        for arg in command.get_arguments() {
            let Some(kind) = kind_of(path, arg) else { continue };
            let option = arg.get_long().map_or(String::new(), |long| format!("-l {long} -r "));
            let _ =
                writeln!(text, "complete -c hotshelf -n \"{when}\" {option}-a \"(command hotshelf complete {} 2>/dev/null)\"", kind.word());
        }
    });
    text
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn names_that_are_more_than_one_line_are_not_offered() {
        assert!(["cache", "/a b", "/$(date)", "/\u{fc}"].iter().all(|name| is_offered(name)));
        let long = "x".repeat(NAME_BYTES_MAX + 1);
        assert!(["", "/a\nb", "/\u{1b}[2J", "/\u{202e}", &long].iter().all(|name| !is_offered(name)));
    }

    #[test]
    fn every_command_that_takes_a_name_completes_it() {
        let (named, valued) = bash_tables();
        for entry in
            ["unmount:0=mounts", "umount:0=mounts", "status:0=all", "check:0=caches", "cache-mode:0=caches", "cache-export:--cache=caches"]
        {
            assert!(named.iter().any(|one| one == entry), "{entry} is not among {named:?}");
        }
        assert!(valued.iter().any(|one| one == "cache-top:--interval"));
        assert!(!named.iter().any(|one| one.starts_with("mount:") || one.starts_with("cache-create:")));
    }

    #[test]
    fn the_hints_that_stand_for_names_in_zsh_are_used_for_nothing_else() {
        let mut taken = Vec::new();
        for_each_command(&mut |path, command| {
            let hints = command.get_arguments().map(Arg::get_value_hint);
            taken.extend(hints.filter(|hint| ZSH_HINTS.iter().any(|(_, ours, _)| ours == hint)).map(|_| path.to_owned()));
        });
        assert!(taken.is_empty(), "{taken:?}");
    }
}
