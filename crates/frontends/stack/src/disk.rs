//! The disk of a library file system, by device name.

use block::{Device, OpenError, Params};
use rawfs::{Disk, DiskSettings};

use crate::device::{DeviceName, DeviceOptions};
use crate::queue::open_shared_queue;

/// Opens a device exclusively for a file system, with one queue for each queue class. With `read_only` it may be shared.
///
/// # Errors
/// Errors of the driver; another process has it open (named if the kernel says which).
pub fn open_disk(name: &DeviceName, read_only: bool, settings: &DiskSettings) -> Result<Disk, OpenError> {
    let device = name.open_with(&DeviceOptions { read_only, alone: true, ..DeviceOptions::default() })?;
    disk_on(&*device, settings).map_err(|error| match error {
        OpenError::Unusable(what) => OpenError::Unusable(format!("{name}: {what}")),
        other => other,
    })
}

/// Opens a disk on an open device.
///
/// # Errors
/// Errors of the driver.
pub fn disk_on(device: &dyn Device, settings: &DiskSettings) -> Result<Disk, OpenError> {
    // No thread serves the queues: waiting threads poll.
    let params = Params { completion: block::handle::CompletionMode::OfQueue, ..settings.params.clone() };
    let queue = || open_shared_queue(device, &params).map(|(queue, _)| queue);
    let disk = Disk::over([queue()?, queue()?, queue()?], settings).map_err(|error| OpenError::Unusable(error.to_string()))?;
    Ok(disk.with_lones(device, settings))
}

#[cfg(test)]
mod test {
    use super::*;
    use rawfs::{FormatOptions, Settings, Store};

    #[test]
    fn an_image_has_one_process_at_a_time() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        file.as_file().set_len(32 << 20).expect("sized");
        let name = DeviceName::Path(file.path().to_owned());
        let open = |read_only| open_disk(&name, read_only, &DiskSettings::default());
        let disk = open(false).expect("opened");
        Store::format(&disk, &FormatOptions::default()).expect("formatted");
        let second = open(false).map(drop).expect_err("it is in use");
        let words = second.to_string();
        assert!(words.contains("is in use") && words.contains(&std::process::id().to_string()), "{words}");
        assert!(open(true).is_ok());
        let (store, _) = Store::open(disk, &Settings::default()).expect("opened");
        store.close().expect("closed");
        let (_, recovery) = Store::open(open(false).expect("free again"), &Settings::default()).expect("opened");
        assert!(recovery.clean);
    }
}
