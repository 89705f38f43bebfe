//! A rate of calls: `"60/m"`, `"5/s"`, `"1000/h burst 20"`.

use std::{borrow::Cow, fmt, num::NonZeroU32, str::FromStr, time::Duration};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;

/// The most calls per unit of time. A higher rate would mean less than a microsecond per call.
const MOST: u32 = 1_000_000;

/// How many calls may be made: so many at once, and then one each time that the unit divided by the number
/// has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(try_from = "String")]
pub struct Rate {
    calls: NonZeroU32,
    unit: char,
    burst: Option<NonZeroU32>,
}

impl Rate {
    /// Returns the interval after which one more call is allowed.
    pub fn interval(&self) -> Duration {
        let unit = match self.unit {
            's' => Duration::from_secs(1),
            'm' => Duration::from_secs(60),
            _ => Duration::from_secs(3_600),
        };
        unit / self.calls.get()
    }

    /// Returns how many calls are allowed at once.
    pub fn burst(&self) -> NonZeroU32 {
        self.burst.unwrap_or(self.calls)
    }
}

impl FromStr for Rate {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const FORM: &str = "is not a rate, such as `60/m` or `60/m burst 10`; the units are `s`, `m` and `h`";
        let mut words = text.split_whitespace();
        let (calls, unit) = words.next().and_then(|rate| rate.split_once('/')).ok_or(FORM)?;
        let number = |text: &str| {
            let number: NonZeroU32 = text.parse().ok()?;
            (number.get() <= MOST).then_some(number)
        };
        const NUMBER: &str = "must have numbers from 1 to 1,000,000";
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if !is_number(calls) || !matches!(unit, "s" | "m" | "h") {
            return Err(FORM);
        }
        let calls = number(calls).ok_or(NUMBER)?;
        let burst = match (words.next(), words.next(), words.next()) {
            (None, ..) => None,
            (Some("burst"), Some(burst), None) if is_number(burst) => Some(number(burst).ok_or(NUMBER)?),
            _ => return Err(FORM),
        };
        Ok(Self { calls, unit: unit.chars().next().unwrap_or('s'), burst })
    }
}

impl TryFrom<String> for Rate {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.calls, self.unit)?;
        self.burst.map_or(Ok(()), |burst| write!(f, " burst {burst}"))
    }
}

impl JsonSchema for Rate {
    fn inline_schema() -> bool {
        true
    }
    fn schema_name() -> Cow<'static, str> {
        "Rate".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "format": "rate", "examples": ["60/m"] })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_a_number_of_calls_in_a_unit_and_how_many_at_once() {
        let check = |text: &str, expected: Option<(u128, u32)>| {
            let read = text.parse::<Rate>();
            let found = read.map(|rate| (rate.interval().as_micros(), rate.burst().get()));
            assert_eq!(found.ok(), expected, "{text:?}");
        };
        check("60/m", Some((1_000_000, 60)));
        check("5/s", Some((200_000, 5)));
        check("3600/h burst 10", Some((1_000_000, 10)));
        check(" 1/h ", Some((3_600_000_000, 1)));
        check("1000000/s", Some((1, 1_000_000)));
        for wrong in ["", "60", "60/", "/m", "60/min", "0/m", "-1/m", "+1/m", "1.5/s", "60 / m", "60/m burst"]
        {
            check(wrong, None);
        }
        for wrong in ["60/m burst 0", "60/m burst 1 2", "60/m 5", "1000001/s", "99999999999/s"] {
            check(wrong, None);
        }
    }

    #[test]
    fn a_rate_is_shown_as_it_is_written() {
        for text in ["60/m", "5/s burst 1"] {
            assert_eq!(text.parse::<Rate>().expect("a rate").to_string(), text);
        }
    }
}
