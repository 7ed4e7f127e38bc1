//! The seeded random numbers of the fault runs. They are those of the chaos proxy, so that a run and its proxy use one seed.

pub(crate) use exec_server_chaos::Random;
