//! Levels of factors and cells of grids, as types of an experiment: a level that no `match` handles, and one that is misspelt, do not
//! compile.

use record::protocol::{ALLOC_CONF, BY, DEVICE_MEMORY, DTYPE, PlainCell, PlainLevel, THREADS};
use std::any::TypeId;
use std::fmt::Debug;
use tch::Kind;

/// What a factor of an experiment can be: an option of an enum (`levels!`), a number (`number!`) or a name (`name!`).
pub trait Level: Copy + PartialEq + Debug + Send + Sync + 'static {
    /// Name of the factor, as results spell it.
    fn factor() -> String;
    /// What is varied, in a few words.
    fn meaning() -> &'static str;
    /// Every option, where the levels are options: what it means, and what titles call it (what one
    /// does who chooses it).
    fn options() -> Vec<PlainLevel> {
        Vec::new()
    }
    /// The level, as results spell it.
    fn text(&self) -> String;
}

/// A factor as plain data.
#[derive(Debug, Clone, PartialEq)]
pub struct FactorText {
    pub name: String,
    pub meaning: &'static str,
    /// What single levels mean and are called, where their names do not say it.
    pub levels: Vec<PlainLevel>,
    pub options: Vec<String>,
    /// Whether the type is one of those below, by which the runner and the report go.
    pub is_known: bool,
}

impl FactorText {
    pub fn of<L: Level>() -> FactorText {
        let known = [
            TypeId::of::<By>(),
            TypeId::of::<DeviceMemory>(),
            TypeId::of::<AllocConf>(),
            TypeId::of::<Threads>(),
            TypeId::of::<Dtype>(),
            TypeId::of::<Precision>(),
        ];
        let mut levels = L::options();
        let options = levels.iter().map(|level| level.name.clone()).collect();
        levels.retain(|level| !level.meaning.is_empty() || !level.label.is_empty());
        levels.sort_by_key(|level| level.meaning.is_empty());
        FactorText { name: L::factor(), meaning: L::meaning(), levels, options, is_known: known.contains(&TypeId::of::<L>()) }
    }

    /// What is wrong with the factor: another type has the name of one that the runner and the report go by.
    pub(super) fn mistake(&self) -> Option<String> {
        let is_taken = [BY, DEVICE_MEMORY, ALLOC_CONF, THREADS, DTYPE].contains(&self.name.as_str());
        let why = "and the runner and the report go by it: use the lab's type, or give yours another name with `as`";
        (is_taken && !self.is_known).then(|| format!("the lab has a factor '{}', {why}", self.name))
    }
}

/// One combination of levels, as a type of its own (`cell!`).
pub trait Cell: Copy + PartialEq + Debug + Send + Sync + 'static {
    /// The factors, in the order in which results write them.
    fn factors() -> Vec<FactorText>;
    /// The level of each.
    fn texts(&self) -> Vec<String>;

    /// The cell as results write it.
    fn plain(&self) -> PlainCell {
        let factors = Self::factors().into_iter().map(|factor| factor.name);
        PlainCell::new(factors.zip(self.texts()).collect())
    }
}

/// That a cell has a factor.
pub trait Has<L: Level>: Cell {
    fn level(&self) -> L;
    /// The same cell with another level of this factor.
    fn with(self, level: L) -> Self;
}

/// One level or several, where a grid is written: `Mode::Training`, `Mode::ALL`, `[1, 2, 4, 8]`.
pub trait Many<L> {
    fn many(self) -> Vec<L>;
}

impl<L: Level> Many<L> for L {
    fn many(self) -> Vec<L> {
        vec![self]
    }
}

impl<L: Level, const N: usize> Many<L> for [L; N] {
    fn many(self) -> Vec<L> {
        self.to_vec()
    }
}

impl<L: Level> Many<L> for &[L] {
    fn many(self) -> Vec<L> {
        self.to_vec()
    }
}

impl<L: Level> Many<L> for Vec<L> {
    fn many(self) -> Vec<L> {
        self
    }
}

/// How results spell a name of Rust: `EveryBlock` is `every-block`, `Fp32` is `fp32`.
pub fn spelling(name: &str) -> String {
    let mut text = String::new();
    for (position, letter) in name.chars().enumerate() {
        if letter.is_uppercase() && position > 0 {
            text.push('-');
        }
        text.extend(letter.to_lowercase());
    }
    text
}

#[doc(hidden)]
#[macro_export]
macro_rules! spelled {
    ($name:ident) => {
        $crate::lab::spelling(stringify!($name))
    };
    ($name:ident $text:literal) => {
        String::from($text)
    };
}

/// A factor whose levels are options: `levels! { Form "how the operation is written": Plain "y = relu(x)", InPlace as "inplace" "relu_(x)" }`.
/// A level's text says what it means, where its name does not, and may be empty. `as` gives another spelling than the name's own, `=>` what
/// titles call the level: what one does who chooses it.
#[macro_export]
macro_rules! levels {
    ($(#[$doc:meta])* $name:ident $(as $factor:literal)? $meaning:literal: $($(#[$note:meta])* $level:ident $(as $text:literal)? $words:literal $(=> $label:literal)?),+ $(,)?) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name { $($(#[$note])* $level),+ }

        #[allow(dead_code)]
        impl $name {
            pub const ALL: &'static [$name] = &[$($name::$level),+];
        }

        impl $crate::lab::Level for $name {
            fn factor() -> String {
                $crate::spelled!($name $($factor)?)
            }
            fn meaning() -> &'static str {
                $meaning
            }
            fn options() -> Vec<$crate::lab::PlainLevel> {
                vec![$($crate::lab::PlainLevel {
                    name: $crate::lab::Level::text(&$name::$level),
                    meaning: $words.into(),
                    label: concat!($($label)?).into(),
                }),+]
            }
            fn text(&self) -> String {
                match self { $($name::$level => $crate::spelled!($level $($text)?)),+ }
            }
        }
    };
}

/// A factor whose levels are numbers: `number! { K "micro-batches in a step" }`; `number! { Rate: f64 "learning rate" }` where they are
/// not whole.
#[macro_export]
macro_rules! number {
    ($(#[$doc:meta])* $name:ident $(as $factor:literal)? $meaning:literal) => {
        $crate::number! { $(#[$doc])* $name: i64 $(as $factor)? $meaning }
    };
    ($(#[$doc:meta])* $name:ident: $number:ident $(as $factor:literal)? $meaning:literal) => {
        $crate::single_level! { $(#[$doc])* $name($number) $($factor)?, $meaning }
    };
}

/// A factor whose levels are names that something else knows, of models for example: `name! { ModelName as "model" "model" }`.
#[macro_export]
macro_rules! name {
    ($(#[$doc:meta])* $name:ident $(as $factor:literal)? $meaning:literal) => {
        $crate::single_level! { $(#[$doc])* $name(&'static str) $($factor)?, $meaning }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! single_level {
    ($(#[$doc:meta])* $name:ident($value:ty) $($factor:literal)?, $meaning:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
        pub struct $name(pub $value);

        impl $crate::lab::Level for $name {
            fn factor() -> String {
                $crate::spelled!($name $($factor)?)
            }
            fn meaning() -> &'static str {
                $meaning
            }
            fn text(&self) -> String {
                self.0.to_string()
            }
        }

        impl $crate::lab::Many<$name> for $value {
            fn many(self) -> Vec<$name> {
                vec![$name(self)]
            }
        }

        impl<const N: usize> $crate::lab::Many<$name> for [$value; N] {
            fn many(self) -> Vec<$name> {
                self.map($name).to_vec()
            }
        }

        impl $crate::lab::Many<$name> for &[$value] {
            fn many(self) -> Vec<$name> {
                self.iter().copied().map($name).collect()
            }
        }
    };
}

/// A cell: the factors that a grid varies, by the types of their levels. `cell! { Memory { model: ModelName, k: K } }` makes a struct and
/// `Memory::cross("mlp", [1, 4])`, all combinations, the last factor running fastest.
#[macro_export]
macro_rules! cell {
    ($(#[$doc:meta])* $name:ident { $($field:ident: $level:ty),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq)]
        pub struct $name { $(pub $field: $level),+ }

        impl $name {
            #[allow(clippy::too_many_arguments)]
            pub fn cross($($field: impl $crate::lab::Many<$level>),+) -> Vec<$name> {
                $(let $field: Vec<$level> = $crate::lab::Many::<$level>::many($field);)+
                let mut all = Vec::new();
                $crate::cell!(@each all $name [] $($field)+);
                all
            }
        }

        impl $crate::lab::Cell for $name {
            fn factors() -> Vec<$crate::lab::FactorText> {
                vec![$($crate::lab::FactorText::of::<$level>()),+]
            }
            fn texts(&self) -> Vec<String> {
                vec![$($crate::lab::Level::text(&self.$field)),+]
            }
        }

        $(impl $crate::lab::Has<$level> for $name {
            fn level(&self) -> $level {
                self.$field
            }
            fn with(mut self, level: $level) -> Self {
                self.$field = level;
                self
            }
        })+
    };
    (@each $all:ident $name:ident [$($done:ident)*] $next:ident $($rest:ident)*) => {
        for $next in $next.iter().copied() { $crate::cell!(@each $all $name [$($done)* $next] $($rest)*); }
    };
    (@each $all:ident $name:ident [$($done:ident)*]) => {
        $all.push($name { $($done),* });
    };
}

// Factors that several experiments share, by the names that `protocol` has for them. The first set how the runner starts a cell's process.

levels! {
    /// Who runs a cell: this program, or PyTorch in Python (`experiments/NAME/step.py`).
    By "who runs it": Vramlab "this project, through libtorch's C++", Pytorch "PyTorch in Python" => "PyTorch"
}

name! {
    /// The device is limited to so much memory: `96MiB`.
    DeviceMemory "memory of the device"
}

name! {
    /// The allocator's settings (`PYTORCH_ALLOC_CONF`), or `default`.
    AllocConf "settings of the caching allocator"
}

name! {
    /// How many threads libtorch computes with: a number, or `all`, which is as many as the user says or the machine has.
    Threads "threads"
}

name! {
    /// A model of [`models`], or one that PyTorch's side knows.
    ModelName as "model" "model"
}

number! { Batch "samples of a step" }

levels! {
    /// What an operation computes in. The highest rate in fp32 is what a machine's other figures are put against.
    Dtype "type of the numbers": Fp32 "", Bf16 "", Fp16 ""
}

levels! {
    /// Parameters, gradients and optimizer state are fp32 in each.
    Precision "precision of the forward pass":
    Fp32 "",
    AmpBf16 as "amp-bf16" "" => "bf16 autocast",
    AmpFp16 as "amp-fp16" "" => "fp16 autocast",
}

impl Precision {
    /// What autocast casts to; `Float` where there is none.
    pub fn kind(self) -> Kind {
        match self {
            Precision::Fp32 => Kind::Float,
            Precision::AmpBf16 => Kind::BFloat16,
            Precision::AmpFp16 => Kind::Half,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    levels! { Form "how it is written": Plain "", EveryBlock "each", InPlace as "inplace" "over its input" }
    number! { K "parts" }
    cell! { Small { model: ModelName, form: Form, k: K } }

    #[test]
    fn runner_knows_factors_of_the_lab() {
        let names = [By::factor(), DeviceMemory::factor(), AllocConf::factor(), Threads::factor(), Dtype::factor()];
        assert_eq!(names, [BY, DEVICE_MEMORY, ALLOC_CONF, THREADS, DTYPE]);
        let cell = |by| PlainCell::new(vec![(BY.to_string(), Level::text(&by))]);
        assert!(cell(By::Pytorch).is_reference() && cell(By::Vramlab).other_side() == cell(By::Pytorch));
        assert!(PlainCell::new(vec![(DTYPE.to_string(), Dtype::Fp32.text())]).is_fp32());
    }

    #[test]
    fn a_cross_runs_fastest_in_its_last_factor() {
        let cells = Small::cross("mlp", [Form::Plain, Form::InPlace], [1, 4]);
        let texts: Vec<String> = cells.iter().map(|cell| cell.plain().to_string()).collect();
        assert_eq!(
            texts,
            ["model=mlp form=plain k=1", "model=mlp form=plain k=4", "model=mlp form=inplace k=1", "model=mlp form=inplace k=4"]
        );
        assert_eq!(cells[3].with(K(1)), cells[2]);
        assert_eq!(Has::<Form>::level(&cells[3]), Form::InPlace);
        assert_eq!(Small::cross(["a", "b"], Form::ALL, 1).len(), 6);
    }
}
