//! The layout of the request for a holder.
//!
//! Spawner and server are of the same build, or [`LAYOUT`] in the spawner's greeting has shown that they are of
//! releases with the same layout. So fields can be added freely, as long as [`LAYOUT`] changes, too.

use std::os::fd::OwnedFd;

use crate::{
    ChildRestrictions, ChildUser, HolderConfig, HolderLimits,
    cgroup::SessionCgroup,
    control::{
        DecodeError,
        codec::{Field, FieldReader, write_count},
    },
};

/// Version of the request layout. The spawner sends it in its greeting.
pub(super) const LAYOUT: u8 = 5;

/// The request kind of a holder. The others are `view::KIND` and `directory_guard::KIND`.
const KIND: u8 = 1;

/// Number of fixed integer fields after the secret, eight bytes each.
const FIELDS: usize = 10;

/// Encodes an absent limit.
const NONE: u64 = u64::MAX;

/// Encodes layout, kind, secret, fixed integers, control group, user, rlimits, and then the opaque record.
pub(super) fn encode(config: &HolderConfig) -> Vec<u8> {
    let mut out = vec![LAYOUT, KIND];
    config.secret.write(&mut out);
    let limits = config.limits;
    let nofile = config.nofile.unwrap_or_default();
    let fields: [u64; FIELDS] = [
        limits.ttl_ms,
        limits.disk_quota_bytes,
        limits.free_floor_bytes,
        limits.free_floor_percent,
        limits.pids_max.unwrap_or(NONE),
        limits.memory_max.unwrap_or(NONE),
        limits.archive_after_ms,
        u64::from(config.nofile.is_some()),
        nofile.0,
        nofile.1,
    ];
    fields.iter().for_each(|field| field.write(&mut out));
    config.confine.group.encode().write(&mut out);
    let user = config.confine.user.as_ref();
    let user: Vec<u32> = user.map_or_else(Vec::new, |user| [&[user.uid, user.gid], &user.groups[..]].concat());
    write_count(user.len(), &mut out);
    user.iter().for_each(|id| id.write(&mut out));
    write_count(config.confine.rlimits.len(), &mut out);
    for (resource, limit) in &config.confine.rlimits {
        resource.write(&mut out);
        limit.write(&mut out);
    }
    out.extend_from_slice(&config.info);
    out
}

pub(super) fn decode(request: &[u8], dir: OwnedFd) -> Result<HolderConfig, DecodeError> {
    let mut from = FieldReader(request.split_first_chunk::<2>().ok_or(DecodeError::Short)?.1);
    let secret = from.read("secret")?;
    let mut fields = [0_u64; FIELDS];
    for field in &mut fields {
        *field = from.read("limits")?;
    }
    let [ttl_ms, disk_quota_bytes, free_floor_bytes, free_floor_percent, pids, memory, archive_after_ms, nofile @ ..] =
        fields;
    let [has_nofile, soft, hard] = nofile;
    let limit = |value: u64| (value != NONE).then_some(value);
    let group: &[u8] = from.read("group")?;
    let mut ids = Vec::new();
    for _ in 0..from.count()? {
        ids.push(from.read("user")?);
    }
    let user = match ids[..] {
        [] => None,
        [uid, gid, ref groups @ ..] => Some(ChildUser { uid, gid, groups: groups.to_vec() }),
        [_] => return Err(DecodeError::Value("user")),
    };
    let mut rlimits = Vec::new();
    for _ in 0..from.count()? {
        rlimits.push((from.read("resource")?, from.read("limit")?));
    }
    Ok(HolderConfig {
        dir,
        secret,
        info: from.0.to_vec(),
        limits: HolderLimits {
            ttl_ms,
            disk_quota_bytes,
            free_floor_bytes,
            free_floor_percent,
            pids_max: limit(pids),
            memory_max: limit(memory),
            archive_after_ms,
        },
        nofile: (has_nofile != 0).then_some((soft, hard)),
        confine: ChildRestrictions { group: SessionCgroup::decode(group), user, rlimits },
        exclusive: true,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_decoded_as_encoded_and_a_truncated_one_is_an_error() {
        let null = || OwnedFd::from(std::fs::File::open("/dev/null").expect("open"));
        let confine = ChildRestrictions {
            group: SessionCgroup::decode(b"u /a/b\np /c\n"),
            user: Some(ChildUser { uid: 1, gid: 2, groups: vec![3, 4] }),
            rlimits: vec![(6, 100)],
        };
        let limits = HolderLimits { pids_max: Some(5), ..HolderLimits::default() };
        let new = HolderConfig {
            dir: null(),
            secret: [7; 32],
            info: b"info".to_vec(),
            limits,
            nofile: Some((1, 2)),
            confine: confine.clone(),
            exclusive: true,
        };
        let bytes = encode(&new);
        let back = decode(&bytes, null()).expect("decoded");
        assert_eq!((back.secret, back.info.as_slice(), back.limits), ([7; 32], b"info".as_slice(), limits));
        assert_eq!((back.nofile, back.confine), (Some((1, 2)), confine));
        for length in 0..bytes.len() - 4 {
            assert!(decode(&bytes[..length], null()).is_err(), "cut at {length}");
        }
    }
}
