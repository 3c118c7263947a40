//! What an instance tells at `/metrics`, and how that changed between two looks.

use std::collections::BTreeMap;

use anyhow::Result;
use testkit::http::Client;

/// Samples by name and labels, such as `fencepost_lease_renew_total{result="renewed"}`. Those of several
/// instances are added up.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metrics(BTreeMap<String, f64>);

impl Metrics {
    /// Looks at all of these instances.
    ///
    /// # Errors
    /// One does not answer.
    pub async fn read(client: &Client, urls: &[String]) -> Result<Self> {
        let mut all = Self::default();
        for url in urls {
            let reply = client.request("GET", &format!("{url}/metrics"), None, None).await?;
            anyhow::ensure!(reply.status == 200, "{url}/metrics answers {}", reply.status);
            all.add(&reply.text);
        }
        Ok(all)
    }

    pub(crate) fn add(&mut self, text: &str) {
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            // The value follows the last blank; labels may have blanks in them.
            if let Some((name, value)) = line.rsplit_once(' ')
                && let Ok(value) = value.parse::<f64>()
            {
                *self.0.entry(name.to_owned()).or_default() += value;
            }
        }
    }

    /// What was added since an earlier look.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let before = |name: &String| earlier.0.get(name).copied().unwrap_or(0.0);
        Self(self.0.iter().map(|(name, value)| (name.clone(), value - before(name))).collect())
    }

    /// The sum of all samples of this name whose labels have each of `labels`, such as `result="renewed"`.
    #[must_use]
    pub fn sum(&self, name: &str, labels: &[&str]) -> f64 {
        let of = |(sample, value): (&String, &f64)| {
            let rest = sample.strip_prefix(name)?;
            let fits =
                (rest.is_empty() || rest.starts_with('{')) && labels.iter().all(|label| rest.contains(label));
            fits.then_some(*value)
        };
        // From 0, since the sum of nothing is otherwise -0.
        self.0.iter().filter_map(of).fold(0.0, |sum, value| sum + value)
    }

    /// Samples of this name by the value of one label.
    #[must_use]
    pub fn by(&self, name: &str, label: &str) -> BTreeMap<String, f64> {
        let mut found = BTreeMap::new();
        for (sample, value) in &self.0 {
            let Some(rest) = sample.strip_prefix(name).filter(|rest| rest.starts_with('{')) else { continue };
            let begin = format!("{label}=\"");
            if let Some(value_of) = rest.split(&begin).nth(1).and_then(|rest| rest.split('"').next()) {
                *found.entry(value_of.to_owned()).or_default() += value;
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_added_up_by_name_and_label() {
        let mut metrics = Metrics::default();
        let text = "# TYPE a_total counter\na_total{kind=\"x\",result=\"ok\"} 3\na_total{kind=\"y\",result=\"ok\"} 4\n\
                    a_total{kind=\"x\",result=\"held\"} 5\na_total_more 100\nb 1.5e1\n";
        metrics.add(text);
        assert_eq!(metrics.sum("a_total", &[]), 12.0);
        assert_eq!(metrics.sum("a_total", &["result=\"ok\""]), 7.0);
        assert_eq!(metrics.sum("a_total", &["result=\"ok\"", "kind=\"y\""]), 4.0);
        assert_eq!((metrics.sum("b", &[]), metrics.sum("c", &[])), (15.0, 0.0));
        assert_eq!(
            metrics.by("a_total", "result"),
            BTreeMap::from([("ok".into(), 7.0), ("held".into(), 5.0)])
        );
        let earlier = metrics.clone();
        metrics.add("a_total{kind=\"z\",result=\"ok\"} 2\n");
        assert_eq!(metrics.since(&earlier).sum("a_total", &[]), 2.0);
    }
}
