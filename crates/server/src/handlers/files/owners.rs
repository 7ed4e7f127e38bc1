//! Names of users and groups from the server's `/etc/passwd` and `/etc/group`. Does not use other sources (LDAP, NIS):
//! this program is linked statically, and a name service that hangs would delay a listing. Both files are read again
//! for each request that wants names.

use std::collections::HashMap;

use exec_server_protocol::fs as wire;

/// Names by uid and gid.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct OwnerNames {
    users: HashMap<u32, String>,
    groups: HashMap<u32, String>,
}

impl OwnerNames {
    /// Reads both files. A file that cannot be read yields no names.
    pub(super) async fn load() -> Self {
        let read = || {
            let [users, groups] = ["/etc/passwd", "/etc/group"]
                .map(|path| std::fs::read(path).map_or_else(|_| HashMap::new(), |text| names(&text)));
            Self { users, groups }
        };
        // A blocking task fails only when the runtime shuts down.
        tokio::task::spawn_blocking(read).await.unwrap_or_default()
    }

    /// The owner of a file, with the names if known.
    pub(super) fn owner(&self, uid: u32, gid: u32) -> wire::Owner {
        wire::Owner { uid, gid, user: self.users.get(&uid).cloned(), group: self.groups.get(&gid).cloned() }
    }
}

/// Parses either file: the name is the first field and the number the third. The first line with a number counts, as in
/// `getpwuid`.
fn names(text: &[u8]) -> HashMap<u32, String> {
    let mut names = HashMap::new();
    for line in String::from_utf8_lossy(text).lines() {
        let mut fields = line.split(':');
        let (Some(name), Some(_), Some(number)) = (fields.next(), fields.next(), fields.next()) else { continue };
        if let (false, Ok(number)) = (name.is_empty(), number.parse()) {
            names.entry(number).or_insert_with(|| name.to_owned());
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_lines_are_skipped_and_the_first_name_of_an_id_wins() {
        let users = names(
            b"root:x:0:0:root:/root:/bin/sh\ntoor:x:0:0::/:/bin/sh\n\nbroken\n:x:7:7::/:\nme:x:1000:1000::/home/me:\n",
        );
        let groups = names(b"wheel:x:0:\nusers:x:100:me,you\n");
        let owners = OwnerNames { users, groups };
        let named = |user: Option<&str>, group: Option<&str>| (user.map(str::to_owned), group.map(str::to_owned));
        let shown = |uid, gid| {
            let owner = owners.owner(uid, gid);
            (owner.user, owner.group)
        };
        assert_eq!(shown(0, 0), named(Some("root"), Some("wheel")));
        assert_eq!(shown(1000, 100), named(Some("me"), Some("users")));
        assert_eq!(shown(7, 7), named(None, None));
    }
}
