//! What is pasted for a virtual machine, word for word.

use crate::fake::Fake;

fn fake(role: &str, more: &str) -> Fake {
    let view = format!(
        r#"{{"name":"web","zone":"global","bridge":"br0","mac":"02:00:00:00:00:02",
            "attach":{{"kind":"vhost-user","socket":"web","role":"{role}"{more}}},
            "properties":{{"mtu":9000}},"state":"waiting","mtu_now":9000,"rings_now":0,
            "details":{{"socket":"/run/windlass/zones/global/we,b"}},"counters":{{}}}}"#
    );
    Fake::start().on("GET /v1/vnics/web", 200, &view)
}

/// QEMU makes the socket where windlass is the client, and connects where it listens; its memory is shared, address, MTU
/// and queues are the VNIC's, and a comma in a path does not end it.
#[test]
fn qemu_args() {
    let done = fake("client", r#","queues":4"#).run("vnic qemu-args web --memory 2G");
    assert_eq!(
        done.out,
        "\
-m 2G \\
-object memory-backend-memfd,id=guest-memory,size=2G,share=on \\
-numa node,memdev=guest-memory \\
-chardev socket,id=chr-web,path=/run/windlass/zones/global/we,,b,server=on,wait=off \\
-netdev vhost-user,id=net-web,chardev=chr-web,queues=4 \\
-device virtio-net-pci,netdev=net-web,mac=02:00:00:00:00:02,host_mtu=9000,rx_queue_size=1024,tx_queue_size=1024,mq=on,vectors=10
"
    );
    let done = fake("server", "").run("vnic qemu-args web");
    assert!(done.out.contains("we,,b,reconnect=1 \\\n"), "{}", done.out);
    assert!(!done.out.contains("mq=on"), "{}", done.out);
    let done = fake("server", "").run("vnic qemu-args web --json");
    let json: serde_json::Value = serde_json::from_str(&done.out).expect("JSON");
    assert_eq!(json[0]["args"][0], "-m");
    let ran = fake("client", "").run("vnic qemu-args web --accel tcg");
    assert!(ran.out.starts_with("-accel tcg \\\n-m 1G"), "{}", ran.out);
}

/// The same for libvirt, whose `mode` is QEMU's end.
#[test]
fn libvirt_xml() {
    let done = fake("server", r#","queues":2"#).run("vnic libvirt-xml web");
    assert_eq!(
        done.out,
        "\
<!-- once in <domain>: guest memory that windlass can reach -->
<memoryBacking>
  <source type='memfd'/>
  <access mode='shared'/>
</memoryBacking>
<!-- in <devices> -->
<interface type='vhostuser'>
  <mac address='02:00:00:00:00:02'/>
  <source type='unix' path='/run/windlass/zones/global/we,b' mode='client'>
    <reconnect enabled='yes' timeout='1'/>
  </source>
  <model type='virtio'/>
  <driver queues='2' rx_queue_size='1024' tx_queue_size='1024'/>
</interface>
<!-- libvirt cannot tell it to the guest: there, set an MTU of 9000 -->
"
    );
    let done = fake("client", "").run("vnic libvirt-xml web");
    assert!(done.out.contains("mode='server'/>"), "{}", done.out);
}

/// A VNIC of another kind has nothing to paste.
#[test]
fn another_attachment() {
    let view = r#"{"name":"v0","zone":"global","bridge":"br0","attach":{"kind":"none"},"state":"down",
        "mtu_now":0,"rings_now":0,"counters":{}}"#;
    let fake = Fake::start().on("GET /v1/vnics/v0", 200, view);
    let done = fake.run("vnic qemu-args v0");
    assert_ne!(done.code, 0);
    assert!(done.err.contains("attached by none"), "{}", done.err);
}
