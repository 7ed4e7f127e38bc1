//! Every flag of a command with its value and its origin, read from the clap grammar, so that new flags are included automatically.

use clap::{ArgAction, ArgMatches, Command, parser::ValueSource};

/// One flag with its effective value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FlagSetting {
    /// The name without the dashes.
    pub(crate) name: String,
    /// The given values or the default; empty if there is none.
    pub(crate) values: Vec<String>,
    /// A switch without a value.
    pub(crate) is_switch: bool,
    /// Whether it can be repeated.
    pub(crate) is_list: bool,
    pub(crate) origin: ValueOrigin,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ValueOrigin {
    Default,
    Flag,
}

/// The visible flags of a command, in the order of its help.
pub(super) fn read(command: &Command, matches: &ArgMatches) -> Vec<FlagSetting> {
    let visible = command.get_arguments().filter(|arg| !arg.is_hide_set());
    let mut settings = Vec::new();
    for arg in visible {
        // `--help` and `--print-config` are not settings.
        let (Some(name), false) = (arg.get_long(), matches!(arg.get_id().as_str(), "help" | "print_config")) else {
            continue;
        };
        let id = arg.get_id().as_str();
        let raw = matches.get_raw(id).into_iter().flatten();
        settings.push(FlagSetting {
            name: name.to_owned(),
            values: raw.map(|value| value.to_string_lossy().into_owned()).collect(),
            is_switch: matches!(arg.get_action(), ArgAction::SetTrue),
            is_list: matches!(arg.get_action(), ArgAction::Append),
            origin: match matches.value_source(id) {
                Some(ValueSource::CommandLine) => ValueOrigin::Flag,
                Some(_) | None => ValueOrigin::Default,
            },
        });
    }
    settings
}
