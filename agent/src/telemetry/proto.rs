//! OTLP's messages for events and traces (opentelemetry-proto 1, stable: fields are added, never
//! changed).
//!
//! They are defined here instead of in `opentelemetry-proto`, because that crate depends on
//! OpenTelemetry's API and SDK for conversions that this crate does not use. The tests decode these
//! messages with that crate.

use prost::{Message, Oneof};

/// `opentelemetry.proto.collector.logs.v1`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ExportLogsServiceRequest {
    #[prost(message, repeated, tag = "1")]
    pub resource_logs: Vec<ResourceLogs>,
}

/// Records of one resource.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ResourceLogs {
    #[prost(message, optional, tag = "1")]
    pub resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    pub scope_logs: Vec<ScopeLogs>,
}

/// Records of one scope.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ScopeLogs {
    #[prost(message, optional, tag = "1")]
    pub scope: Option<InstrumentationScope>,
    #[prost(message, repeated, tag = "2")]
    pub log_records: Vec<LogRecord>,
}

/// An event.
#[derive(Clone, PartialEq, Message)]
pub(super) struct LogRecord {
    /// Nanoseconds since 1970, like all times here.
    #[prost(fixed64, tag = "1")]
    pub time_unix_nano: u64,
    /// 9 is INFO, 13 is WARN.
    #[prost(int32, tag = "2")]
    pub severity_number: i32,
    #[prost(string, tag = "3")]
    pub severity_text: String,
    #[prost(message, optional, tag = "5")]
    pub body: Option<AnyValue>,
    #[prost(message, repeated, tag = "6")]
    pub attributes: Vec<KeyValue>,
    #[prost(fixed64, tag = "11")]
    pub observed_time_unix_nano: u64,
    #[prost(string, tag = "12")]
    pub event_name: String,
}

/// `opentelemetry.proto.collector.trace.v1`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ExportTraceServiceRequest {
    #[prost(message, repeated, tag = "1")]
    pub resource_spans: Vec<ResourceSpans>,
}

/// Spans of one resource.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ResourceSpans {
    #[prost(message, optional, tag = "1")]
    pub resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    pub scope_spans: Vec<ScopeSpans>,
}

/// Spans of one scope.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ScopeSpans {
    #[prost(message, optional, tag = "1")]
    pub scope: Option<InstrumentationScope>,
    #[prost(message, repeated, tag = "2")]
    pub spans: Vec<Span>,
}

/// A span of a trace.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Span {
    #[prost(bytes = "vec", tag = "1")]
    pub trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub span_id: Vec<u8>,
    /// Empty without a parent.
    #[prost(bytes = "vec", tag = "4")]
    pub parent_span_id: Vec<u8>,
    #[prost(string, tag = "5")]
    pub name: String,
    /// 1 is INTERNAL, 2 is SERVER.
    #[prost(int32, tag = "6")]
    pub kind: i32,
    #[prost(fixed64, tag = "7")]
    pub start_time_unix_nano: u64,
    #[prost(fixed64, tag = "8")]
    pub end_time_unix_nano: u64,
    #[prost(message, repeated, tag = "9")]
    pub attributes: Vec<KeyValue>,
    #[prost(message, optional, tag = "15")]
    pub status: Option<Status>,
}

/// The result of a span. Only a span with an error has one.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Status {
    #[prost(string, tag = "2")]
    pub message: String,
    /// 2 is ERROR.
    #[prost(int32, tag = "3")]
    pub code: i32,
}

/// The origin of the records: a process on a host.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Resource {
    #[prost(message, repeated, tag = "1")]
    pub attributes: Vec<KeyValue>,
}

/// The part of the program that made the records.
#[derive(Clone, PartialEq, Message)]
pub(super) struct InstrumentationScope {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub version: String,
}

/// An attribute.
#[derive(Clone, PartialEq, Message)]
pub(super) struct KeyValue {
    #[prost(string, tag = "1")]
    pub key: String,
    #[prost(message, optional, tag = "2")]
    pub value: Option<AnyValue>,
}

/// A value of any kind.
#[derive(Clone, PartialEq, Message)]
pub(super) struct AnyValue {
    #[prost(oneof = "Value", tags = "1, 3, 5")]
    pub value: Option<Value>,
}

/// The used kinds of values.
#[derive(Clone, PartialEq, Oneof)]
pub(super) enum Value {
    #[prost(string, tag = "1")]
    String(String),
    #[prost(int64, tag = "3")]
    Int(i64),
    #[prost(message, tag = "5")]
    Array(ArrayValue),
}

/// Several values.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ArrayValue {
    #[prost(message, repeated, tag = "1")]
    pub values: Vec<AnyValue>,
}

/// The answer, equal for logs and traces.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ExportServiceResponse {
    #[prost(message, optional, tag = "1")]
    pub partial_success: Option<ExportPartialSuccess>,
}

/// A partial rejection.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ExportPartialSuccess {
    /// Number of rejected records or spans.
    #[prost(int64, tag = "1")]
    pub rejected: i64,
}

impl From<String> for AnyValue {
    fn from(text: String) -> Self {
        AnyValue { value: Some(Value::String(text)) }
    }
}

impl From<&str> for AnyValue {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

impl From<u64> for AnyValue {
    fn from(number: u64) -> Self {
        AnyValue { value: Some(Value::Int(number.try_into().unwrap_or(i64::MAX))) }
    }
}

impl From<Vec<String>> for AnyValue {
    fn from(texts: Vec<String>) -> Self {
        let values = texts.into_iter().map(AnyValue::from).collect();
        AnyValue { value: Some(Value::Array(ArrayValue { values })) }
    }
}

/// An attribute.
pub(super) fn attribute(key: &str, value: impl Into<AnyValue>) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(value.into()) }
}
