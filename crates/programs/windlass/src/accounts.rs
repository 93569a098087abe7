//! Users and groups by name, from `/etc/passwd` and `/etc/group` (passwd(5), group(5)).

use std::fs;

use windlass_api::{AttachError, Attachment};

use crate::failure::Failure;

/// The number of a user, and that of their group where it is known.
///
/// # Errors
/// If it is neither a number nor a name in `/etc/passwd`.
pub(crate) fn user(text: &str) -> Result<(u32, Option<u32>), Failure> {
    let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
    find_user(&passwd, text).ok_or_else(|| unknown("user", text))
}

/// The number of a group.
///
/// # Errors
/// If it is neither a number nor a name in `/etc/group`.
pub(crate) fn group(text: &str) -> Result<u32, Failure> {
    let groups = fs::read_to_string("/etc/group").unwrap_or_default();
    find_group(&groups, text).ok_or_else(|| unknown("group", text))
}

/// An attachment as it stands on the command line, where the owner of a socket may be told by name: `USER:GROUP`, or `USER`
/// alone for the user with their own group.
///
/// # Errors
/// If a name is not known, and whatever else is wrong, as a sentence.
pub(crate) fn attachment(text: &str) -> Result<Attachment, String> {
    let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let groups = fs::read_to_string("/etc/group").unwrap_or_default();
    let text = with_numbers(text, &passwd, &groups)?;
    text.parse().map_err(|error: AttachError| error.to_string())
}

/// The same text with the numbers of an owner. A comma within a value is doubled, so that none begins a key.
fn with_numbers(text: &str, passwd: &str, groups: &str) -> Result<String, String> {
    let Some((before, rest)) = text.split_once(",owner=") else {
        return Ok(text.to_owned());
    };
    if !text.starts_with("vhost-user,") || before.ends_with(',') {
        return Ok(text.to_owned());
    }
    let (owner, after) = rest.split_at(rest.find(',').unwrap_or(rest.len()));
    let (user, group) = owner
        .split_once(':')
        .map_or((owner, None), |(u, g)| (u, Some(g)));
    let none =
        |kind: &str, name: &str| format!("owner: there is no {kind} \"{name}\", give the number");
    let (uid, own) = find_user(passwd, user).ok_or_else(|| none("user", user))?;
    let gid = match group {
        Some(group) => find_group(groups, group).ok_or_else(|| none("group", group))?,
        None => own.ok_or_else(|| format!("owner: the group of user {user} is not known"))?,
    };
    Ok(format!("{before},owner={uid}:{gid}{after}"))
}

fn unknown(kind: &str, text: &str) -> Failure {
    Failure::usage(format!("there is no {kind} \"{text}\""), "give the number")
}

fn find_user(passwd: &str, text: &str) -> Option<(u32, Option<u32>)> {
    let number = |field: Option<&str>| field.and_then(|field| field.parse().ok());
    let found = passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        let uid: u32 = number(fields.nth(1))?;
        (name == text || text.parse() == Ok(uid)).then(|| (uid, number(fields.next())))
    });
    found.or_else(|| text.parse().ok().map(|uid| (uid, None)))
}

fn find_group(groups: &str, text: &str) -> Option<u32> {
    let named = groups.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next()? == text).then(|| fields.nth(1)?.parse().ok())?
    });
    named.or_else(|| text.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names and numbers are found, with the group; numbers need no entry, names do.
    #[test]
    fn users_and_groups_are_found() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\nann:x:1000:1001::/home/ann:/bin/sh\nbad\n";
        assert_eq!(find_user(passwd, "ann"), Some((1000, Some(1001))));
        assert_eq!(find_user(passwd, "1000"), Some((1000, Some(1001))));
        assert_eq!(find_user(passwd, "7"), Some((7, None)));
        assert_eq!(find_user(passwd, "bob"), None);
        assert_eq!(find_group("staff:x:50:ann\n", "staff"), Some(50));
        assert_eq!(find_group("", "51"), Some(51));
        assert_eq!(find_group("staff:x:50:ann\n", "stuff"), None);
    }

    /// The owner of a socket by names, by numbers, and by the user alone becomes two numbers; everything else of the text is
    /// as it was, and names that nobody has are refused.
    #[test]
    fn owners_of_sockets_become_numbers() {
        let passwd = "libvirt-qemu:x:64055:994::/:/bin/false\n";
        let groups = "kvm:x:993:\n";
        let numbers = |text: &str| with_numbers(text, passwd, groups);
        let wanted = |owner: &str| format!("vhost-user,socket=a,role=server,owner={owner}");
        for (owner, ids) in [
            ("libvirt-qemu:kvm", "64055:993"),
            ("libvirt-qemu", "64055:994"),
            ("libvirt-qemu:7", "64055:7"),
            ("1:2", "1:2"),
        ] {
            assert_eq!(numbers(&wanted(owner)), Ok(wanted(ids)));
            let more = format!("{},mode=0660", wanted(owner));
            assert_eq!(numbers(&more), Ok(format!("{},mode=0660", wanted(ids))));
        }
        for text in [
            "tap,name=a",
            "vhost-user,socket=a,,owner=b,role=client",
            "none",
        ] {
            assert_eq!(numbers(text), Ok(text.to_owned()), "untouched");
        }
        assert!(numbers(&wanted("bob")).is_err_and(|why| why.contains("user \"bob\"")));
        let why = numbers(&wanted("libvirt-qemu:staff"));
        assert!(why.is_err_and(|why| why.contains("group \"staff\"")));
        assert!(numbers(&wanted("7")).is_err(), "without a group");
    }
}
