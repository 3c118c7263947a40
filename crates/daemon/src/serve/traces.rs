//! Traces on their way to a collector: by OTLP over HTTP, in batches, from a thread of their own.
//!
//! A span that ends goes into a bounded queue, which drops what does not fit. So a collector that is slow or away delays
//! nothing, and takes no memory beyond the queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use client::TlsOptions;
use opentelemetry::{Context, KeyValue, global};
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, Sampler, SdkTracerProvider, Span, SpanData, SpanExporter,
    SpanProcessor,
};
use tokio::runtime::Handle;
use tokio::time::timeout;

use super::endpoint::hostname;
use crate::config;
use crate::exit::{Exit, Failure};

/// How long one batch may take to reach the collector, its repetitions included.
const EXPORT_MAX: Duration = Duration::from_secs(5);
/// How long the spans that are left may take at the end of the process.
pub(super) const FLUSH_MAX: Duration = Duration::from_secs(2);
/// Spans that wait for the collector. Further ones are dropped.
const QUEUE_SPANS_MAX: usize = 8_192;
/// Spans in one request to the collector.
const BATCH_SPANS_MAX: usize = 512;
/// How long a span waits for others to be sent with.
const BATCH_WAIT: Duration = Duration::from_secs(1);
/// The longest answer of a collector that is read.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// Spans are made and sent while it lives.
#[derive(Debug)]
pub struct Traces(SdkTracerProvider);

impl Traces {
    /// Sends spans to the configured collector, over the connections of `runtime`. `None` without a collector.
    ///
    /// # Errors
    /// [`Exit::Config`] for a collector at `https://` that nobody could be trusted for.
    pub fn start(config: &config::Traces, runtime: &Handle) -> Result<Option<Self>, Failure> {
        let Some(url) = config.collector() else { return Ok(None) };
        let unusable = |error: String| Failure::new(Exit::Config, format!("traces.otlp_url: {error}"));
        let http = client::connections(url.scheme() == "https", &TlsOptions::default())
            .map_err(|error| unusable(error.to_string()))?;
        let exporter = opentelemetry_otlp::SpanExporter::builder()
            .with_http()
            .with_endpoint(url.as_str())
            .with_timeout(EXPORT_MAX)
            .with_http_client(Sender { http, runtime: runtime.clone() })
            .build()
            .map_err(|error| unusable(error.to_string()))?;
        let queue = BatchConfigBuilder::default()
            // One more than is ever there: what does not fit is counted here.
            .with_max_queue_size(QUEUE_SPANS_MAX + 1)
            .with_max_export_batch_size(BATCH_SPANS_MAX)
            .with_scheduled_delay(BATCH_WAIT)
            .build();
        let waiting = Arc::new(AtomicUsize::new(0));
        let exporter = Watched { exporter, is_away: AtomicBool::new(false), waiting: Arc::clone(&waiting) };
        let batches = BatchSpanProcessor::builder(exporter).with_batch_config(queue).build();
        let sampled = Sampler::TraceIdRatioBased(config.sampled_percent as f64 / 100.0);
        let provider = SdkTracerProvider::builder()
            .with_span_processor(Bounded { batches, waiting })
            .with_sampler(Sampler::ParentBased(Box::new(sampled)))
            .with_resource(resource())
            .build();
        global::set_tracer_provider(provider.clone());
        api::start_traces();
        Ok(Some(Self(provider)))
    }

    /// Sends what is left. Blocks, for a short while at most.
    pub fn stop(self) {
        if let Err(error) = self.0.shutdown_with_timeout(FLUSH_MAX) {
            tracing::warn!(%error, "the last traces did not reach the collector");
        }
    }
}

/// What all spans of this process have. `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES` add to it.
fn resource() -> Resource {
    let own = Resource::builder_empty().with_service_name("fencepost").with_attributes([
        KeyValue::new("service.version", super::version()),
        KeyValue::new("service.instance.id", format!("{}:{}", hostname(), std::process::id())),
    ]);
    let named = own.build();
    // What the environment says wins.
    let of_environment = Resource::builder_empty()
        .with_detectors(&[Box::new(opentelemetry_sdk::resource::EnvResourceDetector::new())])
        .build();
    let all = named.iter().chain(of_environment.iter());
    let all = all.map(|(key, value)| KeyValue::new(key.clone(), value.clone()));
    let mut resource = Resource::builder_empty().with_attributes(all);
    if let Some(name) = std::env::var("OTEL_SERVICE_NAME").ok().filter(|name| !name.is_empty()) {
        resource = resource.with_service_name(name);
    }
    resource.build()
}

/// The queue, in which a full one is counted.
#[derive(Debug)]
struct Bounded {
    batches: BatchSpanProcessor,
    /// Spans that ended and were neither sent nor dropped.
    waiting: Arc<AtomicUsize>,
}

impl SpanProcessor for Bounded {
    fn on_start(&self, span: &mut Span, context: &Context) {
        self.batches.on_start(span, context);
    }

    fn on_end(&self, span: SpanData) {
        let more = |waiting: usize| (waiting < QUEUE_SPANS_MAX).then_some(waiting + 1);
        match self.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more) {
            Ok(_) => self.batches.on_end(span),
            Err(_) => {
                metrics::counter!("fencepost_trace_spans_total", "result" => "dropped").increment(1);
            }
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.batches.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.batches.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.batches.set_resource(resource);
    }
}

/// The exporter, whose failures are counted, and logged once for each outage of the collector.
#[derive(Debug)]
struct Watched {
    exporter: opentelemetry_otlp::SpanExporter,
    is_away: AtomicBool,
    /// See [`Bounded`].
    waiting: Arc<AtomicUsize>,
}

impl SpanExporter for Watched {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len() as u64;
        let exported = self.exporter.export(batch).await;
        self.waiting.fetch_sub(spans as usize, Ordering::Relaxed);
        let was_away = self.is_away.swap(exported.is_err(), Ordering::Relaxed);
        let result = match &exported {
            Ok(()) => {
                if was_away {
                    tracing::info!("the collector takes traces again");
                }
                "sent"
            }
            Err(error) => {
                if !was_away {
                    tracing::warn!(%error, "the collector does not take traces; they are dropped until it does");
                }
                "dropped"
            }
        };
        metrics::counter!("fencepost_trace_spans_total", "result" => result).increment(spans);
        exported
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

/// Sends requests from a thread that is none of the runtime's.
#[derive(Debug)]
struct Sender {
    http: reqwest::Client,
    runtime: Handle,
}

#[async_trait]
impl HttpClient for Sender {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let request = reqwest::Request::try_from(request)?;
        let sending = send(self.http.clone(), request);
        // The time limit needs the runtime's clock.
        self.runtime.spawn(async move { timeout(EXPORT_MAX, sending).await }).await??
    }
}

async fn send(http: reqwest::Client, request: reqwest::Request) -> Result<Response<Bytes>, HttpError> {
    // With the URL left out: its name is in the configuration, and its query may be secret.
    let mut answer = http.execute(request).await.map_err(reqwest::Error::without_url)?;
    let mut body = Vec::new();
    while let Some(chunk) = answer.chunk().await? {
        if body.len() + chunk.len() > ANSWER_BYTES_MAX {
            return Err(format!("the collector's answer is longer than {ANSWER_BYTES_MAX} bytes").into());
        }
        body.extend_from_slice(&chunk);
    }
    let mut response = Response::new(Bytes::from(body));
    *response.status_mut() = answer.status();
    *response.headers_mut() = answer.headers().clone();
    Ok(response)
}
