//! Sets up logging to stderr, as text for people or as JSON for programs.

use std::{
    fmt::{self, Write as _},
    io::{self, Write as _},
};

use anyhow::Context as _;
use serde_json::{Map, Value};
use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
};
use tracing_subscriber::{
    EnvFilter, Layer,
    field::MakeExt as _,
    fmt::{
        format::{self, Writer},
        time::{FormatTime as _, SystemTime},
    },
    layer::{Context, SubscriberExt as _},
    registry::LookupSpan,
    util::SubscriberInitExt as _,
};

use crate::{args::LogFormat, printable};

/// Stderr with control characters escaped, except colour sequences, line ends and tabs. Each `write` is escaped by itself, which is correct
/// because the formatter writes each event with one call.
struct CleanStderr;

impl io::Write for CleanStderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = printable::clean_coloured(&String::from_utf8_lossy(bytes));
        io::stderr().write_all(text.as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// Starts logging with the given filter.
pub(crate) fn init(filter: &str, format: LogFormat) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(filter).with_context(|| format!("read log filter `{filter}`"))?;
    match format {
        LogFormat::Text => tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(|| CleanStderr)
            .fmt_fields(format::debug_fn(write_clean).delimited(" "))
            .with_ansi(io::IsTerminal::is_terminal(&io::stderr()))
            // Otherwise the subscriber would report a closed stderr on stderr, and panic.
            .log_internal_errors(false)
            .init(),
        LogFormat::Json => tracing_subscriber::registry().with(filter).with(JsonLines).init(),
    }
    Ok(())
}

/// Writes a field with its value escaped. Values can come from other machines: unescaped, one could colour, hide or imitate log lines.
fn write_clean(line: &mut Writer<'_>, field: &Field, value: &dyn fmt::Debug) -> fmt::Result {
    let value = printable::clean(&format!("{value:?}"));
    match field.name() {
        "message" => line.write_str(&value),
        name => write!(line, "{name}={value}"),
    }
}

/// Log lines as JSON, one object per line. The fields of the event and of all its spans are at the top level, so `session`, `process`,
/// `connection` and `trace_id` are at the same place in every line. A field of an inner span replaces one of an outer span.
struct JsonLines;

/// The fields of a span or an event.
#[derive(Default)]
struct Fields(Map<String, Value>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}").into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.0.insert(field.name().to_owned(), value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.0.insert(field.name().to_owned(), value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.0.insert(field.name().to_owned(), value.into());
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for JsonLines {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        if let Some(span) = context.span(id) {
            span.extensions_mut().insert(fields);
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        if let Some(span) = context.span(id)
            && let Some(fields) = span.extensions_mut().get_mut::<Fields>()
        {
            values.record(fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut line = Fields::default();
        line.0.insert("time".to_owned(), now().into());
        line.0.insert("level".to_owned(), event.metadata().level().as_str().to_ascii_lowercase().into());
        line.0.insert("target".to_owned(), event.metadata().target().into());
        for span in context.event_scope(event).into_iter().flat_map(|scope| scope.from_root()) {
            if let Some(fields) = span.extensions().get::<Fields>() {
                line.0.extend(fields.0.clone());
            }
        }
        event.record(&mut line);
        // Write the line with one call, because other writers share stderr. There is nowhere left to report an error.
        io::stderr().write_all(printable::clean_json(&format!("{}\n", Value::Object(line.0))).as_bytes()).ok();
    }
}

/// Wall clock time in RFC 3339.
fn now() -> String {
    let mut text = String::new();
    if SystemTime.format_time(&mut Writer::new(&mut text)).is_err() {
        // Writing to a `String` cannot fail, but formatting a clock before 1970 may.
        text.write_str("unknown").ok();
    }
    text
}
