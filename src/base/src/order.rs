//! Lists in the order in which things first come.

/// Values by key.
pub fn grouped<K: PartialEq, V>(pairs: impl IntoIterator<Item = (K, V)>) -> Vec<(K, Vec<V>)> {
    let mut groups: Vec<(K, Vec<V>)> = Vec::new();
    for (key, value) in pairs {
        match groups.iter_mut().find(|(known, _)| *known == key) {
            Some((_, values)) => values.push(value),
            None => groups.push((key, vec![value])),
        }
    }
    groups
}

/// Where a value is among those that are known, to which it is added if it is new.
pub fn place_of<T: PartialEq>(known: &mut Vec<T>, value: T) -> usize {
    known.iter().position(|one| *one == value).unwrap_or_else(|| {
        known.push(value);
        known.len() - 1
    })
}

/// Each value once.
pub fn distinct<T: PartialEq>(values: impl IntoIterator<Item = T>) -> Vec<T> {
    grouped(values.into_iter().map(|value| (value, ()))).into_iter().map(|(value, _)| value).collect()
}
