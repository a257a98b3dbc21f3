//! Attention over heads, with libtorch's fused kernel.

use tch::Tensor;

/// The part of attention that has no parameters.
#[derive(Debug)]
pub(super) struct Heads {
    pub heads: i64,
    pub causal: bool,
    /// Of the attention's weights.
    pub dropout: f64,
}

impl Heads {
    /// Attends with queries, keys and values `[n, sequence, width]`, which are split into heads; gives `[n, sequence, width]`.
    pub fn attend(&self, queries: &Tensor, keys: &Tensor, values: &Tensor, train: bool) -> Tensor {
        let (n, sequence, width) = queries.size3().unwrap_or_default();
        let by_head = |t: &Tensor| t.view([n, sequence, self.heads, width / self.heads]).transpose(1, 2);
        let (q, k, v) = (by_head(queries), by_head(keys), by_head(values));
        let dropout = if train { self.dropout } else { 0.0 };
        let attended = Tensor::scaled_dot_product_attention(&q, &k, &v, None::<&Tensor>, dropout, self.causal, None::<f64>, false);
        attended.transpose(1, 2).reshape([n, sequence, width])
    }
}
