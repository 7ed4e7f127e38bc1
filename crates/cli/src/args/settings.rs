//! Every flag of a command with its value and where that comes from, read off the grammar: a flag that is added is in it.
//! Must not know any flag.

use clap::{ArgAction, ArgMatches, Command, parser::ValueSource};

/// One flag as it is in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Setting {
    /// Its name, without the dashes.
    pub(crate) name: String,
    /// As it was written, or the default; empty where there is none.
    pub(crate) values: Vec<String>,
    /// It takes no value: it is there or not.
    pub(crate) is_switch: bool,
    /// It may be given several times.
    pub(crate) is_list: bool,
    pub(crate) origin: Origin,
}

/// Where a value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Default,
    Flag,
}

/// The visible flags of a command, in the order of its help.
pub(super) fn read(command: &Command, matches: &ArgMatches) -> Vec<Setting> {
    let visible = command.get_arguments().filter(|arg| !arg.is_hide_set());
    let mut settings = Vec::new();
    for arg in visible {
        // Help is no setting, and neither is the question itself.
        let (Some(name), false) = (arg.get_long(), matches!(arg.get_id().as_str(), "help" | "print_config")) else {
            continue;
        };
        let id = arg.get_id().as_str();
        let raw = matches.get_raw(id).into_iter().flatten();
        settings.push(Setting {
            name: name.to_owned(),
            values: raw.map(|value| value.to_string_lossy().into_owned()).collect(),
            is_switch: matches!(arg.get_action(), ArgAction::SetTrue),
            is_list: matches!(arg.get_action(), ArgAction::Append),
            origin: match matches.value_source(id) {
                Some(ValueSource::CommandLine) => Origin::Flag,
                Some(_) | None => Origin::Default,
            },
        });
    }
    settings
}
