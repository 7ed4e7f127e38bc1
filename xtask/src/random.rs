//! The seeded numbers of the fault runs: those of the chaos proxy, so that a run and its proxy follow one seed.

pub(crate) use exec_server_chaos::Random;
