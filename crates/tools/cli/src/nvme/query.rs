//! What a drive says: through our driver if it is bound to vfio-pci, else through the kernel's node.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use block::driver::AdminNode;
use indicatif::BinaryBytes;
use nvme::Controller;
use nvme::entry::log;
use nvme::identify::{ControllerInfo, NamespaceError, NamespaceInfo, Smart, namespace_list, what};
use pci::Address;
use pci::sysfs::Tree;
use serde_json::{Value, json};
use stack::FunctionName;

use super::drive::{Drive, place};
use crate::Usage;

/// Who answers.
enum DriveAccess {
    Ours(Controller),
    Kernel(AdminNode, PathBuf),
}

/// Zero Kelvin.
const KELVIN: i32 = 273;

fn access(tree: &Tree, drive: &str) -> anyhow::Result<DriveAccess> {
    if let Some(socket) = drive.strip_prefix("vfio-user:") {
        return Ok(DriveAccess::Ours(stack::open_controller(&FunctionName::VfioUser(socket.into()), None)?));
    }
    if drive.starts_with('/') {
        return kernel(Path::new(drive));
    }
    let address: Address = drive.strip_prefix("nvme:").unwrap_or(drive).parse().map_err(|error| Usage(format!("{error}")))?;
    let found = Drive::of(tree, &place(tree, address)?);
    if found.is_ours() {
        return Ok(DriveAccess::Ours(stack::open_controller(&FunctionName::Pci(address.to_string()), None)?));
    }
    let Some(node) = found.node else {
        bail!("{address} belongs to no driver: `hotshelf nvme bind {address}` takes it, `unbind {address}` gives it to the kernel")
    };
    kernel(&tree.path("dev").join(node))
}

fn kernel(path: &Path) -> anyhow::Result<DriveAccess> {
    let node = AdminNode::open(path).with_context(|| format!("{}", path.display()))?;
    Ok(DriveAccess::Kernel(node, path.to_owned()))
}

type Namespaces = Vec<(u32, Result<NamespaceInfo, NamespaceError>)>;

fn identified(access: &DriveAccess) -> anyhow::Result<(ControllerInfo, Namespaces)> {
    match access {
        DriveAccess::Ours(controller) => Ok((controller.info(), controller.namespaces())),
        DriveAccess::Kernel(node, path) => {
            let identify = |what, id| node.identify(what, id).with_context(|| format!("{}: Identify (root may)", path.display()));
            let info = ControllerInfo::from_page(&*identify(what::CONTROLLER, 0)?);
            let mut namespaces = Vec::new();
            for id in namespace_list(&*identify(what::ACTIVE_NAMESPACES, 0)?) {
                let found = NamespaceInfo::from_page(id, &*identify(what::NAMESPACE, id)?);
                // Older drives have no list of names.
                let names = identify(what::DESCRIPTORS, id);
                namespaces.push((id, found.and_then(|found| names.map_or(Ok(found.clone()), |page| found.with_descriptors(&page)))));
            }
            Ok((info, namespaces))
        }
    }
}

/// Runs `hotshelf nvme identify` and prints what the controller reports.
pub fn identify(tree: &Tree, drive: &str, as_json: bool) -> anyhow::Result<bool> {
    let (info, namespaces) = identified(&access(tree, drive)?)?;
    if as_json {
        let namespaces: Vec<Value> = namespaces.iter().map(|(id, found)| namespace(*id, found)).collect();
        say_lines!("{}", serde_json::to_string_pretty(&controller(&info, namespaces))?);
        return Ok(true);
    }
    let (major, minor, tertiary) = info.version;
    let able = [
        (info.volatile_cache, "volatile write cache"),
        (info.deallocate, "deallocate"),
        (info.write_zeroes, "write zeroes"),
        (info.doorbell_buffer, "doorbells in memory"),
    ];
    let able: Vec<&str> = able.into_iter().filter_map(|(has, name)| has.then_some(name)).collect();
    say!("model      {}", info.model);
    say!("serial     {}", info.serial);
    say!("firmware   {}", info.firmware);
    say!("vendor     {:04x}", info.vendor);
    say!("NVMe       {major}.{minor}.{tertiary}");
    say!("transfers  {}", info.transfer_bytes_max.map_or("no limit".to_owned(), |bytes| format!("at most {}", BinaryBytes(bytes))));
    say!("has        {}", if able.is_empty() { "nothing beyond reads and writes".to_owned() } else { able.join(", ") });
    for (id, found) in &namespaces {
        match found {
            Ok(found) => {
                let bytes = BinaryBytes(found.blocks * u64::from(found.block_bytes));
                let protected = if found.write_protected { ", write protected" } else { "" };
                say!("namespace {id}: {bytes}, {} blocks of {} bytes{protected}", found.blocks, found.block_bytes);
            }
            Err(why) => say!("namespace {id}: cannot be used: {why}"),
        }
    }
    Ok(true)
}

fn controller(info: &ControllerInfo, namespaces: Vec<Value>) -> Value {
    let (major, minor, tertiary) = info.version;
    json!({
        "model": info.model, "serial": info.serial, "firmware": info.firmware, "vendor": info.vendor, "controller": info.id,
        "version": format!("{major}.{minor}.{tertiary}"), "transfer_bytes_max": info.transfer_bytes_max,
        "volatile_cache": info.volatile_cache, "deallocate": info.deallocate, "write_zeroes": info.write_zeroes,
        "doorbell_buffer": info.doorbell_buffer, "namespaces": namespaces,
    })
}

fn namespace(id: u32, found: &Result<NamespaceInfo, NamespaceError>) -> Value {
    match found {
        Ok(found) => {
            let hex = |bytes: &[u8]| {
                bytes.iter().any(|byte| *byte != 0).then(|| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
            };
            json!({
                "id": id, "blocks": found.blocks, "block_bytes": found.block_bytes, "write_protected": found.write_protected,
                "eui64": hex(&found.names.eui64), "nguid": hex(&found.names.nguid), "uuid": hex(&found.names.uuid),
            })
        }
        Err(why) => json!({ "id": id, "unusable": why.to_string() }),
    }
}

/// `hotshelf nvme smart`. False: it warns.
pub fn smart(tree: &Tree, drive: &str, as_json: bool) -> anyhow::Result<bool> {
    let smart = match access(tree, drive)? {
        DriveAccess::Ours(controller) => controller.smart().with_context(|| drive.to_owned())?,
        DriveAccess::Kernel(node, path) => {
            let page = node.log_page(log::SMART).with_context(|| format!("{}: its health (root may)", path.display()))?;
            Smart::from_page(&page)
        }
    };
    let warnings = warnings(smart.critical);
    let celsius = i32::from(smart.temperature) - KELVIN;
    if as_json {
        let report = json!({
            "warnings": warnings, "critical": smart.critical, "celsius": celsius, "spare_percent": smart.spare,
            "used_percent": smart.used, "media_errors": smart.media_errors,
        });
        say_lines!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        say!("warnings      {}", if warnings.is_empty() { "none".to_owned() } else { warnings.join("; ") });
        say!("temperature   {celsius} degrees Celsius");
        say!("spare blocks  {}%", smart.spare);
        say!("life used     {}%", smart.used);
        say!("media errors  {}", smart.media_errors);
    }
    Ok(warnings.is_empty())
}

/// The bits of the critical warning (NVMe base specification 2.0, figure 208).
fn warnings(critical: u8) -> Vec<&'static str> {
    let words = [
        "spare blocks are low",
        "too hot or too cold",
        "not reliable any more: replace it",
        "read only",
        "the backup of its cache has failed",
        "its persistent memory has failed",
    ];
    words.into_iter().enumerate().filter_map(|(bit, word)| (critical >> bit & 1 == 1).then_some(word)).collect()
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn who_answers_is_found_or_the_reason_reported() {
        let (_dir, tree) = super::super::drive::test::machine();
        let refused = |drive: &str| access(&tree, drive).err().map(|error| format!("{error:#}")).expect("refused");
        assert!(refused("0000:03:00.0").contains("dev/nvme0"), "the kernel's node, which is not there");
        assert!(refused("nvme7").contains("no PCI address"));
        assert!(refused("0000:04:00.0").contains("is no NVMe drive"));
        assert!(refused("/dev/null/x").contains("/dev/null/x"));
    }

    #[test]
    fn warnings_are_words() {
        assert!(warnings(0).is_empty());
        assert_eq!(warnings(0b1001), ["spare blocks are low", "read only"]);
    }
}
