//! `vnic qemu-args` and `vnic libvirt-xml`: what to paste so that a virtual machine is attached to a VNIC.
//!
//! # Model
//! Both are made of the VNIC as the daemon shows it. Whichever end windlass is, the machine is the other: a VNIC with
//! `role=client` wants a QEMU that makes the socket.
//!
//! # Limits
//! Guest memory has to be shared memory, or windlass cannot reach the guest's rings; the output says so in its own words,
//! since QEMU does not.

use serde_json::{Value, json};
use windlass_api::{Attachment, ErrorCode, MacAddr, Name, Role, VhostUser, Vnic, VnicView};

use crate::Session;
use crate::failure::Failure;
use crate::objects;
use crate::options::QemuArgs;
use crate::table::{self, Form};

/// Descriptors of each ring: the most that QEMU gives a transmit ring.
const RING_SIZE: u32 = 1024;
/// MTU of a VNIC where the property says `auto`, in bytes.
const MTU: u32 = 1500;

/// What a virtual machine must be told.
struct Guest {
    name: Name,
    vhost: VhostUser,
    /// The whole path of the socket.
    path: String,
    mac: Option<MacAddr>,
    mtu: u32,
}

impl Guest {
    fn find(session: &mut Session<'_>, verb: &str, name: &Name) -> Result<Guest, Failure> {
        let view: VnicView = objects::view::<Vnic>(session, verb, name)?;
        let Attachment::VhostUser(vhost) = &view.config.attach else {
            return Err(Failure::new(
                ErrorCode::Invalid,
                format!("{verb} vnic {name}"),
                format!(
                    "VNIC \"{name}\" is attached by {}, not by vhost-user",
                    view.config.attach.kind()
                ),
                "make it with --attach vhost-user,socket=PATH,role=client",
            ));
        };
        let path = view.status.details.get("socket").cloned();
        Ok(Guest {
            name: name.clone(),
            vhost: vhost.clone(),
            path: path.unwrap_or_else(|| vhost.socket.to_string()),
            mac: view.config.mac,
            mtu: view.config.settings().mtu.unwrap_or(MTU),
        })
    }

    fn queues(&self) -> u16 {
        self.vhost.queues
    }
}

/// `windlass vnic qemu-args NAME`
pub(crate) fn qemu(session: &mut Session<'_>, args: &QemuArgs) -> Result<(), Failure> {
    let guest = Guest::find(session, "qemu-args", &args.name.name)?;
    let mut words = qemu_words(&guest, &args.memory);
    if let Some(accel) = &args.accel {
        words.splice(0..0, ["-accel".to_owned(), accel.clone()]);
    }
    match session.form {
        Form::Json => session.rows(&[json!({"name": guest.name, "args": words})], &Vec::new()),
        _ => {
            let lines: Vec<String> = words.chunks(2).map(line).collect();
            Ok(writeln!(session.out, "{}", lines.join(" \\\n"))?)
        }
    }
}

/// An option and its value as a shell reads them.
fn line(words: &[String]) -> String {
    let quoted = words.iter().map(|word| {
        let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_=,./:+@%".contains(&b);
        match word.bytes().all(plain) {
            true => word.clone(),
            false => format!("'{}'", word.replace('\'', r"'\''")),
        }
    });
    quoted.collect::<Vec<_>>().join(" ")
}

/// QEMU's arguments, each option followed by its value.
fn qemu_words(guest: &Guest, memory: &str) -> Vec<String> {
    let name = &guest.name;
    // A comma in a value is written twice (QEMU's own rule).
    let path = guest.path.replace(',', ",,");
    let end = match guest.vhost.role {
        Role::Client => "server=on,wait=off",
        Role::Server => "reconnect=1",
    };
    let queues = guest.queues();
    let mut device = format!("virtio-net-pci,netdev=net-{name}");
    if let Some(mac) = guest.mac {
        device += &format!(",mac={mac}");
    }
    device += &format!(
        ",host_mtu={},rx_queue_size={RING_SIZE},tx_queue_size={RING_SIZE}",
        guest.mtu
    );
    if queues > 1 {
        // One vector for each ring, one for the control queue, one for changes of the configuration.
        device += &format!(",mq=on,vectors={}", 2 * queues + 2);
    }
    let words = [
        ("-m", memory.to_owned()),
        (
            "-object",
            format!("memory-backend-memfd,id=guest-memory,size={memory},share=on"),
        ),
        ("-numa", "node,memdev=guest-memory".to_owned()),
        (
            "-chardev",
            format!("socket,id=chr-{name},path={path},{end}"),
        ),
        (
            "-netdev",
            format!("vhost-user,id=net-{name},chardev=chr-{name},queues={queues}"),
        ),
        ("-device", device),
    ];
    let words = words
        .into_iter()
        .flat_map(|(option, value)| [option.to_owned(), value]);
    words.collect()
}

/// `windlass vnic libvirt-xml NAME`
pub(crate) fn libvirt(session: &mut Session<'_>, name: &Name) -> Result<(), Failure> {
    let guest = Guest::find(session, "libvirt-xml", name)?;
    let (memory, interface) = libvirt_parts(&guest);
    match session.form {
        Form::Json => {
            let row: Value = json!({
                "name": guest.name, "memory_backing": memory, "interface": interface,
            });
            session.rows(&[row], &Vec::new())
        }
        _ => Ok(write!(
            session.out,
            "<!-- once in <domain>: guest memory that windlass can reach -->\n{memory}\
             <!-- in <devices> -->\n{interface}{}",
            match guest.mtu {
                MTU => String::new(),
                mtu => format!(
                    "<!-- libvirt cannot tell it to the guest: there, set an MTU of {mtu} -->\n"
                ),
            }
        )?),
    }
}

/// The two elements that libvirt needs. An `<mtu>` is not among them: libvirt sets it on a network device of the host,
/// which a VNIC of vhost-user is not, and does not start the domain.
fn libvirt_parts(guest: &Guest) -> (String, String) {
    let memory =
        "<memoryBacking>\n  <source type='memfd'/>\n  <access mode='shared'/>\n</memoryBacking>\n";
    let path = escaped(&guest.path);
    let source = match guest.vhost.role {
        Role::Client => format!("  <source type='unix' path='{path}' mode='server'/>\n"),
        Role::Server => format!(
            "  <source type='unix' path='{path}' mode='client'>\n    \
             <reconnect enabled='yes' timeout='1'/>\n  </source>\n"
        ),
    };
    let mac = guest.mac.map(|mac| format!("  <mac address='{mac}'/>\n"));
    let queues = match guest.queues() {
        1 => String::new(),
        queues => format!(" queues='{queues}'"),
    };
    let interface = format!(
        "<interface type='vhostuser'>\n{}{source}  <model type='virtio'/>\n  \
         <driver{queues} rx_queue_size='{RING_SIZE}' tx_queue_size='{RING_SIZE}'/>\n</interface>\n",
        mac.unwrap_or_default(),
    );
    (memory.to_owned(), interface)
}

/// Text inside an attribute that stands between apostrophes.
fn escaped(text: &str) -> String {
    let clean = table::clean(text);
    let mut escaped = String::new();
    for c in clean.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '\'' => escaped.push_str("&apos;"),
            c => escaped.push(c),
        }
    }
    escaped
}
