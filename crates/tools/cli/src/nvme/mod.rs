//! `hotshelf nvme`: drives from the kernel to here and back, and what they say of themselves.

pub mod args;
mod bind;
mod doctor;
mod drive;
mod query;

use pci::sysfs::{NVME_CLASS, Tree};

use self::args::{NvmeArgs, NvmeCommand};
use self::drive::Drive;
use crate::queue::table;

/// Runs the given `hotshelf nvme` command.
pub fn nvme(args: &NvmeArgs) -> anyhow::Result<bool> {
    let tree = Tree::default();
    match &args.command {
        NvmeCommand::List(args) => list(&tree, args.json),
        NvmeCommand::Bind(args) => {
            let user = args.user.as_deref().map(crate::queue::user_id).transpose()?;
            say_lines!("{}", bind::bind(&tree, args.address, user)?);
            Ok(true)
        }
        NvmeCommand::Unbind(args) => {
            say_lines!("{}", bind::unbind(&tree, args.address)?);
            Ok(true)
        }
        NvmeCommand::Identify(args) => query::identify(&tree, &args.drive, args.json),
        NvmeCommand::Smart(args) => query::smart(&tree, &args.drive, args.json),
        NvmeCommand::Doctor(args) => doctor::doctor(&tree, args.address, args.json),
    }
}

/// By address; none where there is no PCI.
fn drives(tree: &Tree) -> Vec<Drive> {
    let places = tree.of_class(NVME_CLASS).unwrap_or_default();
    places.iter().map(|place| Drive::of(tree, place)).collect()
}

fn list(tree: &Tree, json: bool) -> anyhow::Result<bool> {
    let drives = drives(tree);
    if json {
        say_lines!("{}", serde_json::to_string_pretty(&drives)?);
    } else if drives.is_empty() {
        say!("no NVMe drive is on the PCI bus of this machine");
    } else {
        let or_none = |word: &Option<String>| word.clone().filter(|word| !word.is_empty()).unwrap_or_else(|| "-".to_owned());
        let head = ["ADDRESS", "DRIVER", "NODE", "GROUP", "MODEL", "SERIAL", "DISKS", "USED"];
        table(
            &head,
            drives.iter().map(|drive| {
                let disks = if drive.disks.is_empty() { "-".to_owned() } else { drive.disks.join(",") };
                let uses = if drive.uses.is_empty() { "no".to_owned() } else { drive.uses.join("; ") };
                let [driver, node, group] = [&drive.driver, &drive.node, &drive.group].map(or_none);
                vec![drive.address.clone(), driver, node, group, or_none(&drive.model), or_none(&drive.serial), disks, uses]
            }),
        );
    }
    Ok(true)
}
