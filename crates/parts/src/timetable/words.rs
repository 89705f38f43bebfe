//! Times in people's words: `in two hours`, `tomorrow at 9`, `every weekday at 9:30`.
//!
//! Words only choose between the forms that the room has already: a wait, a time of the calendar, a cron
//! expression. Text with any word that is not understood has no meaning here.

use jiff::{
    Span, Zoned,
    civil::{Date, DateTime, Time, Weekday},
    fmt::strtime::BrokenDownTime,
};

/// Numbers as words: from one, and the tens.
const NUMBERS: [&str; 15] = [
    "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen",
];
const TENS: [&str; 9] = ["ten", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"];
/// Halves of units.
const HALVES: [(&str, &str); 3] = [("minute", "30s"), ("hour", "30m"), ("day", "12h")];
/// The first hour that is not one of the night before.
const NIGHT_ENDS: i8 = 6;
/// Words without a meaning of their own.
const FILLERS: [&str; 7] = ["at", "on", "the", "of", "this", "and", "&"];
/// Examples for people who said when, but not at what time.
const WITHOUT_TIME: &str = "has no time of day: write for example";

/// Returns a wait in the form that a duration has: `two hours and a half day` becomes `2 hours 12h`.
pub(super) fn wait(text: &str) -> String {
    let lower = text.to_lowercase();
    let mut words = lower.split_whitespace().filter(|word| *word != "and").peekable();
    let mut out: Vec<String> = Vec::new();
    while let Some(word) = words.next() {
        if word == "half" {
            words.next_if(|next| matches!(*next, "a" | "an"));
            let half = words.peek().and_then(|unit| HALVES.iter().find(|(name, _)| name == unit));
            if let Some((_, half)) = half {
                words.next();
                out.push((*half).to_string());
                continue;
            }
        }
        out.push(match word {
            "a" | "an" => "1".into(),
            word => number(word),
        });
    }
    out.join(" ")
}

/// Returns the digits of a number that is a word, and any other word unchanged.
fn number(word: &str) -> String {
    let place = |names: &[&str]| names.iter().position(|name| *name == word).map(|at| at + 1);
    let number = place(&NUMBERS).or_else(|| place(&TENS).map(|tens| tens * 10));
    number.map_or_else(|| word.to_string(), |number| number.to_string())
}

/// Returns the day of the week or the month that a word names, in full or as it is often shortened.
fn named(word: &str) -> BrokenDownTime {
    let word = match word.trim_end_matches('.') {
        long @ ("tues" | "thur" | "thurs" | "sept") => &long[..3],
        word => word,
    };
    let read = ["%A", "%a", "%B", "%b"].iter().find_map(|format| BrokenDownTime::parse(format, word).ok());
    read.unwrap_or_default()
}

/// What the words of a text say about a time.
#[derive(Debug, Default)]
struct TimeWords {
    /// Whether it repeats.
    every: bool,
    /// How many of a unit, such as every 2 days.
    count: Option<u32>,
    unit: Option<Unit>,
    days: Vec<Weekday>,
    /// Whether today is not meant by a day of the week.
    is_next: bool,
    /// Days from today.
    ahead: Option<i64>,
    date: Option<Date>,
    month: Option<i8>,
    day: Option<i8>,
    year: Option<i16>,
    clock: Option<ClockTime>,
    part: Option<Part>,
}

/// A time of day as written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ClockTime {
    hour: i8,
    minute: i8,
    /// Whether `am` or `pm` says which half of the day is meant.
    has_half: bool,
    /// Whether it has no other sense, as a bare number has.
    is_clear: bool,
}

/// A time of day that has one meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TimeOfDay {
    hour: i8,
    minute: i8,
    /// Whether it comes after the midnight that ends the day.
    is_next_day: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    Day,
    Week,
    Month,
}

/// A part of the day: its usual hour, and the first hour beside it that is one of the afternoon without `pm`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    hour: Option<i8>,
    late_from: Option<i8>,
}

impl Unit {
    fn of(word: &str) -> Option<Self> {
        Some(match word.strip_suffix('s').unwrap_or(word) {
            "day" | "daily" => Self::Day,
            "week" | "weekly" => Self::Week,
            "month" | "monthly" => Self::Month,
            _ => return None,
        })
    }
}

impl Part {
    fn of(word: &str) -> Option<Self> {
        let (hour, late_from) = match word {
            "morning" => (Some(9), None),
            "noon" => (Some(12), None),
            "midnight" => (Some(0), None),
            "afternoon" => (Some(15), Some(1)),
            "evening" => (Some(18), Some(1)),
            "tonight" | "night" => (None, Some(NIGHT_ENDS)),
            _ => return None,
        };
        Some(Self { hour, late_from })
    }
}

impl TimeWords {
    /// Reads all words; `None` if one of them is not understood, or does not fit the others.
    fn of(text: &str) -> Option<Self> {
        let lower = text.to_lowercase().replace("day after tomorrow", "overmorrow").replace(',', " ");
        let words: Vec<&str> = lower.split_whitespace().collect();
        let mut said = Self::default();
        let mut at = 0;
        while let Some(word) = words.get(at) {
            at += said.take(word, &words[..at], &words[at + 1..])?;
        }
        Some(said)
    }

    /// Takes a word, and perhaps the next. Returns how many.
    fn take(&mut self, word: &str, before: &[&str], rest: &[&str]) -> Option<usize> {
        match word {
            filler if FILLERS.contains(&filler) => {}
            "every" | "each" => self.every = true,
            "daily" | "weekly" | "monthly" => {
                self.every = true;
                put(&mut self.unit, Unit::of(word)?)?;
            }
            "weekday" | "weekdays" | "workday" | "workdays" => {
                self.every |= word.ends_with('s');
                self.days.extend(Weekday::Monday.cycle_forward().take(5));
            }
            "weekend" | "weekends" => {
                self.every |= word.ends_with('s');
                self.days.extend([Weekday::Sunday, Weekday::Saturday]);
            }
            "next" | "coming" => self.is_next = true,
            "today" => put(&mut self.ahead, 0)?,
            "tomorrow" => put(&mut self.ahead, 1)?,
            "overmorrow" => put(&mut self.ahead, 2)?,
            _ => return self.take_other(word, before, rest.first().copied().unwrap_or_default()),
        }
        Some(1)
    }

    fn take_other(&mut self, word: &str, before: &[&str], next: &str) -> Option<usize> {
        if let Some(part) = Part::of(word) {
            if word == "tonight" {
                put(&mut self.ahead, 0)?;
            }
            put(&mut self.part, part)?;
        } else if let Some(day) = named(word.strip_suffix('s').unwrap_or(word)).weekday() {
            self.every |= word.ends_with("days");
            self.days.push(day);
        } else if let Some(unit) = Unit::of(word).filter(|_| self.every) {
            put(&mut self.unit, unit)?;
        } else if let Some(month) = named(word).month() {
            put(&mut self.month, month)?;
        } else if let Ok(date) = word.parse::<Date>() {
            put(&mut self.date, date)?;
        } else if let Some(day) = ordinal(word) {
            put(&mut self.day, day)?;
        } else {
            return self.take_number(word, before, next);
        }
        Some(1)
    }

    /// Takes a number: how many, a day beside its month, a year, or a time of day.
    fn take_number(&mut self, word: &str, before: &[&str], next: &str) -> Option<usize> {
        let digits = number(word);
        let previous = before.last().copied().unwrap_or_default();
        if self.every && Unit::of(next).is_some() {
            put(&mut self.count, digits.parse().ok()?)?;
        } else if named(next).month().is_some() || named(previous).month().is_some() && digits.len() <= 2 {
            put(&mut self.day, digits.parse().ok()?)?;
        } else if digits.len() == 4 && self.month.is_some() && !digits.contains(':') {
            put(&mut self.year, digits.parse().ok()?)?;
        } else {
            let (mut clock, used) = clock(&digits, next)?;
            clock.is_clear |= previous == "at";
            put(&mut self.clock, clock)?;
            return Some(used);
        }
        Some(1)
    }

    /// Returns the time of day, if the words name one. A night goes on after midnight.
    fn time(&self) -> Option<TimeOfDay> {
        let Some(clock) = self.clock else {
            return Some(TimeOfDay { hour: self.part?.hour?, minute: 0, is_next_day: false });
        };
        let is_night = self.part.is_some_and(|part| part.late_from == Some(NIGHT_ENDS));
        let late_from = self.part.and_then(|part| part.late_from).filter(|_| !clock.has_half);
        let hour = match clock.hour {
            12 if is_night && !clock.has_half => 0,
            hour if hour < 12 && late_from.is_some_and(|from| hour >= from) => hour + 12,
            hour => hour,
        };
        Some(TimeOfDay { hour, minute: clock.minute, is_next_day: is_night && hour < NIGHT_ENDS })
    }
}

/// Sets what may be said once.
fn put<T>(place: &mut Option<T>, value: T) -> Option<()> {
    place.is_none().then(|| *place = Some(value))
}

/// Returns the day of `1st`, `2nd`, `23rd` and `15th`.
fn ordinal(word: &str) -> Option<i8> {
    let digits = ["st", "nd", "rd", "th"].iter().find_map(|end| word.strip_suffix(end))?;
    digits.parse().ok().filter(|day| (1..=31).contains(day))
}

/// Reads a time of day. Returns it, and how many words it has.
fn clock(word: &str, next: &str) -> Option<(ClockTime, usize)> {
    let half = |word: &str| match word.replace('.', "").as_str() {
        "am" => Some(false),
        "pm" => Some(true),
        _ => None,
    };
    let joined = ["am", "pm"].iter().find_map(|end| Some((word.strip_suffix(end)?, half(end)?)));
    let (digits, is_pm, used) = match (joined, half(next)) {
        (Some((digits, is_pm)), _) => (digits, Some(is_pm), 1),
        (None, Some(is_pm)) => (word, Some(is_pm), 2),
        (None, None) => (word, None, 1 + usize::from(next == "o'clock")),
    };
    let (hour, minute) = digits.split_once(':').unwrap_or((digits, "0"));
    let (hour, minute): (i8, i8) = (hour.parse().ok()?, minute.parse().ok()?);
    let hour = match is_pm {
        Some(is_pm) => (1..=12).contains(&hour).then_some(hour % 12 + if is_pm { 12 } else { 0 })?,
        None => hour,
    };
    let is_clear = used == 2 || is_pm.is_some() || digits.contains(':');
    let clock = ClockTime { hour, minute, has_half: is_pm.is_some(), is_clear };
    ((0..24).contains(&hour) && (0..60).contains(&minute)).then_some((clock, used))
}

/// Returns the cron expression of words that say what repeats; `None` if the words say no such thing.
///
/// # Errors
///
/// Returns what is missing, or why there is no such expression.
pub(super) fn cron(text: &str) -> Option<Result<String, String>> {
    let lower = text.trim().to_lowercase().replace("hourly", "every hour");
    let repeats = lower.starts_with("every ") || lower.starts_with("each ");
    let is_interval = |secs: &u64| repeats && (*secs < 24 * 3_600 || lower.contains("hour"));
    if let Some(secs) = super::seconds(&lower).filter(is_interval) {
        return Some(interval(secs));
    }
    let said = TimeWords::of(text).filter(|said| {
        said.every && !said.is_next && said.ahead.is_none() && said.date.is_none() && said.month.is_none()
    })?;
    let time = said.time();
    let is_next_day = time.is_some_and(|time| time.is_next_day);
    let fault = |message: &str| Some(Err(message.to_string()));
    let days = match (said.unit, said.days.is_empty(), said.day) {
        _ if said.count.is_some_and(|count| count > 1) => {
            return fault("is no cron expression: name the days, such as `every monday and thursday at 9`");
        }
        // Every day, and every morning.
        (None | Some(Unit::Day), true, None) if said.unit.is_some() || said.part.is_some() => {
            "* * *".to_string()
        }
        (None | Some(Unit::Week), false, None) => {
            let day =
                |day: &Weekday| day.wrapping_add(i8::from(is_next_day)).to_sunday_zero_offset().to_string();
            format!("* * {}", said.days.iter().map(day).collect::<Vec<_>>().join(","))
        }
        // The night of the last day ends in another month.
        (Some(Unit::Month), true, Some(day)) if !is_next_day => format!("{day} * *"),
        (Some(Unit::Week), true, None) => {
            return fault("names no day: write for example `every monday at 9`");
        }
        (Some(Unit::Month), true, None) => {
            return fault("names no day: write for example `every month on the 1st at 9`");
        }
        _ => return None,
    };
    Some(match time {
        Some(TimeOfDay { hour, minute, .. }) => Ok(format!("{minute} {hour} {days}")),
        None => Err(format!("{WITHOUT_TIME} `{} at 9`", text.trim())),
    })
}

/// Returns the cron expression of every so many seconds, whose minutes must divide the hour, or whose hours
/// the day.
fn interval(secs: u64) -> Result<String, String> {
    if secs < 60 {
        let often =
            "is too often: a schedule runs once a minute at most; gateway.watch_start checks every 5 seconds";
        return Err(often.into());
    }
    let (unit, whole, name) =
        if secs.is_multiple_of(3_600) { (3_600, 24, "hours") } else { (60, 60, "minutes") };
    let count = secs / unit;
    if !secs.is_multiple_of(unit) || count >= whole || !whole.is_multiple_of(count) {
        let near = (1..=whole / 2)
            .filter(|near| whole.is_multiple_of(*near))
            .min_by_key(|near| near.abs_diff(count));
        let near = near.unwrap_or(1);
        return Err(format!(
            "is no cron expression: only {name} that divide {whole} are, such as `every {near} {name}`"
        ));
    }
    Ok(match (name, count) {
        ("hours", 1) => "0 * * * *".into(),
        ("hours", count) => format!("0 */{count} * * *"),
        (_, count) => format!("*/{count} * * * *"),
    })
}

/// Returns the time of the calendar that words name; `None` if the words name none.
///
/// # Errors
///
/// Returns what is missing.
pub(super) fn instant(text: &str, now: &Zoned) -> Option<Result<DateTime, String>> {
    let said =
        TimeWords::of(text).filter(|said| !said.every && said.unit.is_none() && said.days.len() <= 1)?;
    let is_dated =
        said.ahead.is_some() || said.date.is_some() || said.month.is_some() || !said.days.is_empty();
    let is_clear = said.clock.is_some_and(|clock| clock.is_clear);
    if !(is_dated || is_clear || said.part.is_some()) || said.day.is_some() != said.month.is_some() {
        return None;
    }
    let Some(TimeOfDay { hour, minute, is_next_day }) = said.time() else {
        return Some(Err(format!("{WITHOUT_TIME} `{} at 9`", text.trim())));
    };
    let time = Time::new(hour, minute, 0, 0).ok()?;
    let at = |date: Date| {
        let date = date.checked_add(Span::new().days(i64::from(is_next_day))).ok()?;
        Some(date.to_datetime(time))
    };
    let has_passed = |date: Date| at(date).is_none_or(|at| at <= now.datetime());
    let today = now.date();
    let ahead = |days: i64| today.checked_add(Span::new().days(days)).ok();
    // After midnight, the night is still that of yesterday.
    let yesterday = ahead(-1).filter(|day| !has_passed(*day));
    let date = match (said.date, said.month, said.day, said.ahead, said.days.first()) {
        (Some(date), None, None, None, _) => date,
        (None, Some(month), Some(day), None, None) => {
            let of = |year: i16| Date::new(year, month, day);
            let year = said.year.unwrap_or(today.year());
            let date = of(year).ok()?;
            if said.year.is_none() && has_passed(date) { of(year + 1).ok()? } else { date }
        }
        (None, None, None, Some(0), None) => yesterday.unwrap_or(today),
        (None, None, None, Some(days), None) => ahead(days)?,
        (None, None, None, None, Some(day))
            if *day == today.weekday() && !said.is_next && !has_passed(today) =>
        {
            today
        }
        (None, None, None, None, Some(day)) => today.nth_weekday(1, *day).ok()?,
        (None, None, None, None, None) => yesterday.or_else(|| ahead(i64::from(has_passed(today))))?,
        _ => return None,
    };
    Some(Ok(at(date)?))
}
