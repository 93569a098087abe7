//! Users and groups by name, from `/etc/passwd` and `/etc/group` (passwd(5), group(5)).

use std::fs;

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
}
