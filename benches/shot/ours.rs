//! The engine that is measured.

use super::shot::{Engine, Figures, Options, PinKind, Setup, TouchKind, gib};
use bivouac_core::cache::Keep;
use bivouac_core::config::{PinOrder, Touch};
use bivouac_core::device::{DeviceSpan, Stream};
use bivouac_core::transfer::history::{
    CacheConfig, Caches, Field, FieldMut, History, HistoryStats, Operation, Return, Step,
};
use std::sync::Arc;
use std::time::Duration;

pub struct Bivouac {
    history: History,
    caches: Caches,
    /// The application's buffer.
    span: DeviceSpan,
    names: Vec<String>,
    stream: Arc<dyn Stream>,
    keep: Keep,
    until: Return,
    /// What the caches had counted when the shot began.
    before: HistoryStats,
}

impl Bivouac {
    pub fn open(options: &Options, setup: &Setup, is_ready: bool) -> Bivouac {
        let config = CacheConfig {
            device_bytes: gib(options.gpu),
            host_bytes: gib(options.host),
            store_directory: Some(options.directory.clone()),
            touch: match options.touch {
                TouchKind::Auto => Touch::Auto,
                TouchKind::Beside => Touch::Beside,
                TouchKind::Between => Touch::Between,
            },
            pin: match options.pin {
                PinKind::Turns => PinOrder::InTurns,
                PinKind::AtOnce => PinOrder::AtOnce,
            },
            trace: true,
            ..CacheConfig::default()
        };
        let caches = Caches::open(setup.device.clone(), setup.segment.clone(), config).expect("caches");
        let keep = if options.persist { Keep::All } else { Keep::UntilRead };
        let history = caches.history("shot", keep);
        while is_ready && !caches.is_ready() {
            std::thread::sleep(Duration::from_millis(5));
        }
        let names = (0..options.fields).map(|index| format!("p{index}")).collect();
        let stream = setup.device.adopt(&setup.raw).expect("own stream");
        let before = history.stats();
        let until = if setup.enqueue { Return::Enqueued } else { Return::Done };
        Bivouac { history, caches, span: setup.span.clone(), names, stream, keep, until, before }
    }

    /// The fields of a version: equal parts of the application's buffer.
    fn cut(&self, bytes: u64) -> Vec<(&str, DeviceSpan)> {
        let each = (bytes / self.names.len() as u64).next_multiple_of(4096);
        let names = self.names.iter().zip((0..bytes).step_by(each as usize));
        names.map(|(name, at)| (name.as_str(), self.span.part(at, each.min(bytes - at)).expect("inside"))).collect()
    }
}

impl Engine for Bivouac {
    fn reset(&mut self) {
        self.history.take_steps();
        self.history.take_spans();
        self.history = self.caches.history("shot", self.keep);
        self.before = self.history.stats();
    }

    fn append(&mut self, version: u64, bytes: u64) {
        let parts = self.cut(bytes);
        let fields: Vec<Field> = parts.iter().map(|(name, span)| Field::device::<u8>(name, span)).collect();
        self.history.append_and(version, &fields, &*self.stream, self.until).expect("append");
    }

    fn hint(&mut self, versions: &[u64]) {
        self.history.hint(versions.iter().copied());
    }

    fn start_prefetch(&mut self) {
        self.history.start_prefetch();
    }

    fn wait_flushed(&mut self) {
        self.history.wait_flushed();
    }

    fn restore(&mut self, version: u64, bytes: u64) {
        let parts = self.cut(bytes);
        let mut fields: Vec<FieldMut> = parts.iter().map(|(name, span)| FieldMut::device::<u8>(name, span)).collect();
        self.history.restore_and(version, &mut fields, &*self.stream, self.until).expect("restore");
    }

    fn figures(&mut self) -> Figures {
        self.history.settle().expect("restored as appended");
        let stats = self.history.stats();
        let (hits, restores) = (stats.hits - self.before.hits, stats.restores - self.before.restores);
        let steps = self.history.take_steps();
        let of = |operation, value: fn(&Step) -> f64| -> Vec<f64> {
            steps.iter().filter(|step| step.operation == operation).map(value).collect()
        };
        let mean = |values: Vec<f64>| values.iter().sum::<f64>() / values.len().max(1) as f64;
        Figures {
            hit_rate: hits as f64 / restores as f64,
            pinned: stats.host_bytes.1 as f64,
            moved: std::array::from_fn(|link| (stats.moved_bytes[link] - self.before.moved_bytes[link]) as f64),
            distances: of(Operation::Restore, |step| step.distance as f64),
            device_append: mean(of(Operation::Append, |step| step.device_seconds)),
            device_restore: mean(of(Operation::Restore, |step| step.device_seconds)),
        }
    }
}
