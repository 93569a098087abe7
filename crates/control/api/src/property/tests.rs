use super::*;

/// Each default is a value of its own row, no kind of object has a name twice, and each row has a
/// sentence.
#[test]
fn the_table_is_sound() {
    for scope in [
        Scope::Bridge,
        Scope::Uplink,
        Scope::Vnic,
        Scope::Flow,
        Scope::Vnd,
        Scope::Zone,
    ] {
        let mut names: Vec<_> = properties(scope).map(|row| row.option.name).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count, "{scope:?}");
    }
    for row in PROPERTIES {
        let option = row.option;
        assert!(
            option.default == AUTO || option.default_value().is_some(),
            "{}",
            option.name
        );
        assert!(option.sentence.ends_with('.'), "{}", option.name);
    }
}

/// Defaults differ by kind where they must; what is set wins; `auto` forgets it.
#[test]
fn settings_follow_the_table() {
    let mut set = Properties::default();
    let vnic = MemberSettings::of(Scope::Vnic, &set);
    assert!(vnic.mac_nospoof && vnic.learn && !vnic.span && vnic.tagged.is_empty());
    assert_eq!(
        (vnic.vlan, vnic.mtu, vnic.spin_us),
        (Some(1), Some(1500), None)
    );
    let uplink = MemberSettings::of(Scope::Uplink, &set);
    assert!(!uplink.mac_nospoof && uplink.mtu.is_none());
    set.assign(Scope::Vnic, "mac-nospoof=off").expect("flag");
    set.assign(Scope::Vnic, "tagged=none").expect("no VLAN");
    assert!(MemberSettings::of(Scope::Vnic, &set).tagged.is_empty());
    set.assign(Scope::Vnic, "tagged=20-30,10").expect("list");
    set.assign(Scope::Vnic, "vlan=0").expect("number");
    let vnic = MemberSettings::of(Scope::Vnic, &set);
    assert!(!vnic.mac_nospoof && vnic.vlan.is_none() && vnic.vlans().len() == 12);
    set.assign(Scope::Vnic, "mac-nospoof=auto").expect("auto");
    assert!(MemberSettings::of(Scope::Vnic, &set).mac_nospoof);
}

/// Unknown names, other kinds' names, wrong types and numbers outside the limits are refused, each
/// with a sentence that names it.
#[test]
fn bad_settings_are_refused() {
    let mut set = Properties::default();
    for bad in [
        "x=1",
        "ageing=1",
        "vlan=4095",
        "mtu=67",
        "learn=yes",
        "vlan",
        "tagged=0",
    ] {
        assert!(set.assign(Scope::Vnic, bad).is_err(), "{bad}");
    }
    assert!(set.is_empty());
    for bad in [
        r#"{"x": 1}"#,
        r#"{"learn": 1}"#,
        r#"{"learn": "on"}"#,
        r#"{"vlan": "1"}"#,
        r#"{"vlan": -1}"#,
        r#"{"vlan": 1.5}"#,
        r#"{"vlan": null}"#,
        r#"{"vlan": 1, "vlan": 2}"#,
        r#"{"tagged": [1]}"#,
    ] {
        assert!(serde_json::from_str::<Properties>(bad).is_err(), "{bad}");
    }
    let error = serde_json::from_str::<Properties>(r#"{"vlna": 1}"#).expect_err("unknown");
    assert!(error.to_string().contains("\"vlna\""), "{error}");
}

/// The map reads back from its JSON, and a patch sets and forgets.
#[test]
fn json_round_trip_and_patch() {
    let text = r#"{"learn":false,"tagged":"10-12","vlan":7}"#;
    let mut set: Properties = serde_json::from_str(text).expect("properties");
    assert_eq!(serde_json::to_string(&set).expect("json"), text);
    let patch: PropertyPatch =
        serde_json::from_str(r#"{"vlan":null,"private":true}"#).expect("patch");
    set.patch(&patch);
    assert_eq!(
        serde_json::to_string(&set).expect("json"),
        r#"{"learn":false,"private":true,"tagged":"10-12"}"#
    );
    assert_eq!(
        serde_json::to_string(&patch).expect("json"),
        r#"{"private":true,"vlan":null}"#
    );
}
