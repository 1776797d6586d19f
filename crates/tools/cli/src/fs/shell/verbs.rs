//! The commands of the shell: their words, options and help.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use hybridfs::Size;

/// What is read from a line.
#[derive(Debug, Parser)]
#[command(name = "hotshelf fs shell", multicall = true, disable_help_subcommand = true, disable_version_flag = true)]
pub struct Line {
    /// The command that is to run.
    #[command(subcommand)]
    pub verb: Verb,
}

/// A command. Paths are in the image unless they are called a file of the machine.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Tell of all commands, or of one
    #[command(visible_alias = "?")]
    Help(HelpArgs),
    /// Make an empty file system in the image
    Mkfs(MkfsArgs),
    /// Change the working directory [default: the top]
    Cd(OnePath),
    /// Tell the working directory
    Pwd,
    /// List directories
    Ls(LsArgs),
    /// List directories and all below
    Lsr(LsArgs),
    /// Draw directories and all below
    Tree(Paths),
    /// Make empty files, or set the times of those that are there
    Touch(SomePaths),
    /// Tell all attributes
    Stat(SomePaths),
    /// Remove files
    Rm(RmArgs),
    /// Make directories
    Mkdir(MkdirArgs),
    /// Remove empty directories
    Rmdir(SomePaths),
    /// Rename, or move into a directory
    Mv(FromTo),
    /// Give a file another name
    Ln(LnArgs),
    /// Copy files, with -r directories too
    Cp(CpArgs),
    /// Show files as they are
    Cat(SomePaths),
    /// Show the whole tree below directories
    Catr(Paths),
    /// Make words the content of a file
    Write(WriteArgs),
    /// Write words behind the end of a file
    Append(WriteArgs),
    /// Write words over what a file has at an offset
    Owrite(OwriteArgs),
    /// Set the size of files; made if they are not there
    Truncate(TruncateArgs),
    /// Set permissions
    Chmod(ChmodArgs),
    /// Set owner and group
    Chown(ChownArgs),
    /// Tell where symbolic links lead
    Readlink(SomePaths),
    /// Tell how full the image is
    Df,
    /// Tell what files and directories take
    Du(Paths),
    /// Make everything durable
    Sync,
    /// Gather what is written from here on, for `commit`
    ///
    /// write, append, owrite, truncate, touch and import of a file are collected and not yet visible. `commit` makes all durable or,
    /// after a failure or power cut, none. `abort` drops them. Other changes are refused meanwhile.
    Begin,
    /// Commit the collected changes: all of them, durably, or none
    Commit,
    /// Abort the transaction: drop the collected changes
    Abort,
    /// Bring a file or a directory of the machine into the image
    Import(ImportArgs),
    /// Bring a file or a directory to the machine
    Export(ExportArgs),
    /// Check the whole file system, and explain what is wrong
    Checkfs,
    /// Measure synchronous against asynchronous writing
    #[command(subcommand_required = true, arg_required_else_help = true, disable_help_subcommand = true)]
    Bench(BenchArgs),
    /// Run all of `bench` at the sizes of the paper: CSV and curves
    #[command(name = "run-experiments")]
    RunExperiments(ExperimentArgs),
    /// Tell the commands given so far
    History,
    /// End
    #[command(visible_alias = "exit")]
    Quit,
}

/// Holds the argument of `help`.
#[derive(Debug, Args)]
pub struct HelpArgs {
    /// Command whose help text is shown
    #[arg(value_name = "COMMAND")]
    pub command: Option<String>,
}

/// Holds the arguments of `mkfs`.
#[derive(Debug, Args)]
pub struct MkfsArgs {
    /// The size of a file that is made [default: what is there, or the whole device]
    #[arg(long, value_name = "SIZE")]
    pub size: Option<Size>,
    /// Room for names, attributes and small files [default: a sixteenth]
    #[arg(long, value_name = "SIZE")]
    pub metadata: Option<Size>,
    /// Space reserved for the log
    #[arg(long, value_name = "SIZE")]
    pub log: Option<Size>,
    /// Overwrite data that the image holds
    #[arg(long)]
    pub force: bool,
}

/// A path that may be left out.
#[derive(Debug, Args)]
pub struct OnePath {
    /// Path of a file or directory
    pub path: Option<OsString>,
}

/// Paths that may be left out.
#[derive(Debug, Args)]
pub struct Paths {
    /// Where [default: the working directory]
    #[arg(value_name = "PATH")]
    pub paths: Vec<OsString>,
}

/// Holds any number of paths.
#[derive(Debug, Args)]
pub struct SomePaths {
    /// Paths of files or directories
    #[arg(value_name = "PATH", required = true)]
    pub paths: Vec<OsString>,
}

/// Holds the arguments of `ls` and `lsr`.
#[derive(Debug, Args)]
pub struct LsArgs {
    /// With mode, names, owner, size and time
    #[arg(short)]
    pub long: bool,
    /// Where [default: the working directory]
    #[arg(value_name = "PATH")]
    pub paths: Vec<OsString>,
}

/// Holds the arguments of `rm`.
#[derive(Debug, Args)]
pub struct RmArgs {
    /// Directories too, with all below
    #[arg(short)]
    pub recursive: bool,
    /// What is not there is no failure
    #[arg(short)]
    pub force: bool,
    /// Paths of files or directories
    #[arg(value_name = "PATH", required = true)]
    pub paths: Vec<OsString>,
}

/// Holds the arguments of `mkdir`.
#[derive(Debug, Args)]
pub struct MkdirArgs {
    /// Those above too; what is there is no failure
    #[arg(short)]
    pub parents: bool,
    /// Paths of files or directories
    #[arg(value_name = "PATH", required = true)]
    pub paths: Vec<OsString>,
}

/// Holds the arguments of `mv`.
#[derive(Debug, Args)]
pub struct FromTo {
    /// What; several into a directory
    #[arg(value_name = "FROM", required = true)]
    pub from: Vec<OsString>,
    /// Path of the target file or directory
    #[arg(value_name = "TO")]
    pub to: OsString,
}

/// Holds the arguments of `ln`.
#[derive(Debug, Args)]
pub struct LnArgs {
    /// Make a symbolic link, not a hard link
    #[arg(short)]
    pub symbolic: bool,
    /// The file, or what the symbolic link says
    pub target: OsString,
    /// The new name, or a directory to put it
    pub name: OsString,
}

/// Holds the arguments of `cp`.
#[derive(Debug, Args)]
pub struct CpArgs {
    /// Directories too, with all below
    #[arg(short)]
    pub recursive: bool,
    /// Paths of files or directories
    #[command(flatten)]
    pub paths: FromTo,
}

/// Holds the arguments of `write` and `append`.
#[derive(Debug, Args)]
pub struct WriteArgs {
    /// The file; made if it is not there
    pub path: OsString,
    /// What, with a blank between; no newline is put behind
    #[arg(value_name = "WORD")]
    pub words: Vec<OsString>,
}

/// Holds the arguments of `owrite`.
#[derive(Debug, Args)]
pub struct OwriteArgs {
    /// Path of a file or directory
    pub path: OsString,
    /// Where, in bytes from its begin
    pub offset: u64,
    /// What, with a blank between
    #[arg(value_name = "WORD", required = true)]
    pub words: Vec<OsString>,
}

/// Holds the arguments of `truncate`.
#[derive(Debug, Args)]
pub struct TruncateArgs {
    /// Size in bytes, or with a unit such as 64KiB
    pub size: Size,
    /// Paths of files or directories
    #[arg(value_name = "PATH", required = true)]
    pub paths: Vec<OsString>,
}

/// Holds the arguments of `chmod`.
#[derive(Debug, Args)]
pub struct ChmodArgs {
    /// In octal, such as 644
    #[arg(value_parser = octal)]
    pub mode: u16,
    /// Paths of files or directories
    #[arg(value_name = "PATH", required = true)]
    pub paths: Vec<OsString>,
}

/// Holds the arguments of `chown`.
#[derive(Debug, Args)]
pub struct ChownArgs {
    /// Numbers: UID, UID:GID or :GID
    #[arg(value_parser = owner)]
    pub owner: (Option<u32>, Option<u32>),
    /// Paths of files or directories
    #[arg(value_name = "PATH", required = true)]
    pub paths: Vec<OsString>,
}

/// Holds the arguments of `import`.
#[derive(Debug, Args)]
pub struct ImportArgs {
    /// The file or directory of the machine
    pub file: PathBuf,
    /// Where to in the image [default: its name, here]
    pub path: Option<OsString>,
}

/// Holds the arguments of `export`.
#[derive(Debug, Args)]
pub struct ExportArgs {
    /// The file or directory in the image
    pub path: OsString,
    /// Where to on the machine [default: its name, here]
    pub file: Option<PathBuf>,
    /// Replace files of the machine that are there
    #[arg(short)]
    pub force: bool,
}

/// Holds the arguments of `bench`.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// The benchmark that is to run.
    #[command(subcommand)]
    pub what: BenchVerb,
}

/// Lists the benchmarks of `bench`.
#[derive(Debug, Subcommand)]
pub enum BenchVerb {
    /// Append to files: one, or several in a transaction
    #[command(name = "e2e_write")]
    Appends(AppendArgs),
    /// Read free blocks of 4 KiB, one by one and at once
    #[command(name = "raw_seq_read")]
    RawRead(RawArgs),
    /// Write free blocks of 4 KiB, one by one and at once
    #[command(name = "raw_seq_write")]
    RawWrite(RawArgs),
}

/// Holds the arguments of `bench e2e_write`.
#[derive(Debug, Args)]
pub struct AppendArgs {
    /// What each file gets: a file of the machine, or a number of blocks
    pub input: PathBuf,
    /// Number of measurements for each point
    #[arg(default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub trials: u32,
    /// Files, together in a transaction
    #[arg(default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub files: u32,
    /// Bytes of a block (the paper's have 512)
    #[arg(long, value_name = "BYTES", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub block: u32,
}

/// Holds the arguments of `bench raw_seq_*`.
#[derive(Debug, Args)]
pub struct RawArgs {
    /// Number of measurements for each point
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub trials: u32,
    /// Number of blocks to transfer in each measurement
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub blocks: u32,
}

/// Holds the arguments of `run-experiments`.
#[derive(Debug, Args)]
pub struct ExperimentArgs {
    /// A few points of each curve: seconds
    #[arg(long, conflicts_with = "full")]
    pub small: bool,
    /// Measure every point, which takes minutes [default]
    #[arg(long)]
    pub full: bool,
    /// Bytes of a block (the paper's have 512)
    #[arg(long, value_name = "BYTES", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub block: u32,
    /// Times each point is measured
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub trials: u32,
    /// A directory of the machine
    pub dir: PathBuf,
}

fn octal(text: &str) -> Result<u16, String> {
    u16::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o7777).ok_or_else(|| "permissions are octal, 0 to 7777".into())
}

fn owner(text: &str) -> Result<(Option<u32>, Option<u32>), String> {
    let id = |id: &str| {
        if id.is_empty() { Ok(None) } else { id.parse().map(Some).map_err(|_| format!("`{id}` is no number of a user or group")) }
    };
    let (user, group) = text.split_once(':').unwrap_or((text, ""));
    match (id(user)?, id(group)?) {
        (None, None) => Err("neither a user nor a group".into()),
        both => Ok(both),
    }
}

/// What a command does to the file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum VerbEffect {
    /// Works without one.
    NeedsNone,
    /// Looks.
    ReadOnly,
    /// It changes the file system and may be part of a transaction.
    Writes,
    /// Changes it at once.
    Changes,
}

impl Verb {
    /// Returns what the command does to the file system.
    pub fn does(&self) -> VerbEffect {
        match self {
            Verb::Help(_) | Verb::Mkfs(_) | Verb::History | Verb::Quit => VerbEffect::NeedsNone,
            Verb::Cd(_) | Verb::Pwd | Verb::Ls(_) | Verb::Lsr(_) | Verb::Tree(_) | Verb::Stat(_) | Verb::Cat(_) | Verb::Catr(_) => {
                VerbEffect::ReadOnly
            }
            Verb::Readlink(_) | Verb::Df | Verb::Du(_) | Verb::Export(_) | Verb::Checkfs | Verb::Abort => VerbEffect::ReadOnly,
            Verb::Write(_) | Verb::Append(_) | Verb::Owrite(_) | Verb::Truncate(_) | Verb::Touch(_) | Verb::Import(_) => VerbEffect::Writes,
            Verb::Begin | Verb::Commit => VerbEffect::Writes,
            Verb::Rm(_) | Verb::Mkdir(_) | Verb::Rmdir(_) | Verb::Mv(_) | Verb::Ln(_) | Verb::Cp(_) | Verb::Chmod(_) => VerbEffect::Changes,
            Verb::Chown(_) | Verb::Sync | Verb::Bench(_) | Verb::RunExperiments(_) => VerbEffect::Changes,
        }
    }
}
