//! Times in people's words: `in two hours`, `tomorrow at 9`, `every weekday at 9:30`.
//!
//! Words only choose between the forms that the room has already: a wait, a time of the calendar, a cron expression. Text
//! with any word that is not understood has no meaning here.

use jiff::{
    Span, Zoned,
    civil::{Date, DateTime, Time},
};

/// The days of the week and the months, by their first three letters.
const DAYS: [(&str, &str); 7] = [
    ("sun", "sunday"),
    ("mon", "monday"),
    ("tue", "tuesday"),
    ("wed", "wednesday"),
    ("thu", "thursday"),
    ("fri", "friday"),
    ("sat", "saturday"),
];
const MONTHS: [(&str, &str); 12] = [
    ("jan", "january"),
    ("feb", "february"),
    ("mar", "march"),
    ("apr", "april"),
    ("may", "may"),
    ("jun", "june"),
    ("jul", "july"),
    ("aug", "august"),
    ("sep", "september"),
    ("oct", "october"),
    ("nov", "november"),
    ("dec", "december"),
];
/// Numbers as words.
const NUMBERS: [(&str, &str); 20] = [
    ("a", "1"),
    ("an", "1"),
    ("one", "1"),
    ("two", "2"),
    ("three", "3"),
    ("four", "4"),
    ("five", "5"),
    ("six", "6"),
    ("seven", "7"),
    ("eight", "8"),
    ("nine", "9"),
    ("ten", "10"),
    ("eleven", "11"),
    ("twelve", "12"),
    ("fifteen", "15"),
    ("twenty", "20"),
    ("thirty", "30"),
    ("forty", "40"),
    ("sixty", "60"),
    ("ninety", "90"),
];
/// Halves of units.
const HALVES: [(&str, &str); 3] = [("minute", "30s"), ("hour", "30m"), ("day", "12h")];
/// The first hour that is not one of the night before.
const NIGHT_ENDS: i8 = 6;
/// Words without a meaning of their own.
const FILLERS: [&str; 6] = ["on", "the", "of", "this", "and", "&"];
/// Examples for people who said when, but not at what time.
const WITHOUT_TIME: &str = "has no time of day: write for example";

/// Returns a wait in the form that a duration has: `two hours and a half day` becomes `2 hours 12h`.
pub(super) fn wait(text: &str) -> String {
    let lower = text.to_lowercase();
    let mut words = lower.split_whitespace().filter(|word| *word != "and").peekable();
    let mut out: Vec<&str> = Vec::new();
    while let Some(word) = words.next() {
        if word == "half" {
            words.next_if(|next| matches!(*next, "a" | "an"));
            let half = words.peek().and_then(|unit| HALVES.iter().find(|(name, _)| name == unit));
            if let Some((_, half)) = half {
                words.next();
                out.push(half);
                continue;
            }
        }
        out.push(number(word).unwrap_or(word));
    }
    out.join(" ")
}

fn number(word: &str) -> Option<&'static str> {
    NUMBERS.iter().find(|(name, _)| *name == word).map(|(_, digits)| *digits)
}

/// What the words of a text say about a time.
#[derive(Debug, Default)]
struct TimeWords {
    /// Whether it repeats.
    every: bool,
    /// How many of a unit, such as every 5 minutes.
    count: Option<u32>,
    unit: Option<Unit>,
    /// Days of the week, from 0 for Sunday.
    days: Vec<usize>,
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
    Second,
    Minute,
    Hour,
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
            "second" | "sec" => Self::Second,
            "minute" | "min" => Self::Minute,
            "hour" | "hr" => Self::Hour,
            "day" => Self::Day,
            "week" => Self::Week,
            "month" => Self::Month,
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

    fn is_night(self) -> bool {
        self.late_from == Some(NIGHT_ENDS)
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

    /// Takes a word, and perhaps some that follow. Returns how many.
    fn take(&mut self, word: &str, before: &[&str], rest: &[&str]) -> Option<usize> {
        let next = rest.first().copied().unwrap_or_default();
        if FILLERS.contains(&word) || word == "at" {
            return Some(1);
        }
        match word {
            "every" | "each" => self.every = true,
            "hourly" | "daily" | "weekly" | "monthly" => {
                self.every = true;
                let unit =
                    ["hourly", "daily", "weekly", "monthly"].iter().position(|known| *known == word)?;
                put(&mut self.unit, [Unit::Hour, Unit::Day, Unit::Week, Unit::Month][unit])?;
            }
            "weekday" | "weekdays" | "workday" | "workdays" => self.days.extend(1..=5),
            "weekend" | "weekends" => self.days.extend([0, 6]),
            "next" | "coming" => self.is_next = true,
            "today" => put(&mut self.ahead, 0)?,
            "tomorrow" => put(&mut self.ahead, 1)?,
            "overmorrow" => put(&mut self.ahead, 2)?,
            "half" if self.every => {
                let skipped = usize::from(matches!(next, "a" | "an"));
                let unit = Unit::of(rest.get(skipped)?)?;
                let (count, unit) = (unit == Unit::Hour).then_some((30, Unit::Minute))?;
                put(&mut self.count, count)?;
                put(&mut self.unit, unit)?;
                return Some(2 + skipped);
            }
            _ => return self.take_other(word, before, next),
        }
        if matches!(word, "weekdays" | "workdays" | "weekends") {
            self.every = true;
        }
        Some(1)
    }

    fn take_other(&mut self, word: &str, before: &[&str], next: &str) -> Option<usize> {
        if let Some(part) = Part::of(word) {
            if word == "tonight" {
                put(&mut self.ahead, 0)?;
            }
            put(&mut self.part, part)?;
        } else if let Some(day) = place(&DAYS, word.strip_suffix('s').unwrap_or(word)) {
            self.every |= word.ends_with("days");
            self.days.push(day);
        } else if let Some(unit) = Unit::of(word).filter(|_| self.every) {
            put(&mut self.unit, unit)?;
        } else if let Some(month) = place(&MONTHS, word) {
            put(&mut self.month, i8::try_from(month + 1).ok()?)?;
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
        let digits = number(word).filter(|_| !matches!(word, "a" | "an")).unwrap_or(word);
        let previous = before.last().copied().unwrap_or_default();
        if self.every && Unit::of(next).is_some() {
            put(&mut self.count, digits.parse().ok()?)?;
        } else if place(&MONTHS, next).is_some() || place(&MONTHS, previous).is_some() && digits.len() <= 2 {
            put(&mut self.day, digits.parse().ok()?)?;
        } else if digits.len() == 4 && self.month.is_some() && !digits.contains(':') {
            put(&mut self.year, digits.parse().ok()?)?;
        } else {
            let (mut clock, used) = clock(digits, next)?;
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
        let is_night = self.part.is_some_and(Part::is_night);
        let late_from = self.part.and_then(|part| part.late_from).filter(|_| !clock.has_half);
        let hour = match clock.hour {
            12 if is_night && !clock.has_half => 0,
            hour if hour < 12 && late_from.is_some_and(|from| hour >= from) => hour + 12,
            hour => hour,
        };
        Some(TimeOfDay { hour, minute: clock.minute, is_next_day: is_night && hour < NIGHT_ENDS })
    }

    fn is_dated(&self) -> bool {
        self.ahead.is_some() || self.date.is_some() || self.month.is_some() || !self.days.is_empty()
    }
}

/// Sets what may be said once.
fn put<T>(place: &mut Option<T>, value: T) -> Option<()> {
    place.is_none().then(|| *place = Some(value))
}

/// Returns the place of a name, or of its first three letters, in a list.
fn place(names: &[(&str, &str)], word: &str) -> Option<usize> {
    let word = word.trim_end_matches('.');
    names.iter().position(|(short, long)| {
        word == *short || word == *long || word.len() == 4 && long.starts_with(word)
    })
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
    let said = TimeWords::of(text).filter(|said| {
        said.every && !said.is_next && said.ahead.is_none() && said.date.is_none() && said.month.is_none()
    })?;
    let time = said.time();
    let days = match (said.unit, said.days.is_empty(), said.day) {
        (Some(Unit::Second), ..) => {
            let message = "is too often: a schedule runs once a minute at most; gateway.watch_start checks every 5 seconds";
            return Some(Err(message.into()));
        }
        (Some(unit @ (Unit::Minute | Unit::Hour)), true, None) if time.is_none() => {
            return Some(interval(unit, said.count.unwrap_or(1)));
        }
        (Some(Unit::Minute | Unit::Hour), ..) => return None,
        _ if said.count.is_some_and(|count| count > 1) => {
            return Some(Err(
                "is no cron expression: name the days, such as `every monday and thursday at 9`".into(),
            ));
        }
        // Every day, and every morning.
        (None | Some(Unit::Day), true, None) if said.unit.is_some() || said.part.is_some() => {
            "* * *".to_string()
        }
        (None | Some(Unit::Week), false, None) => {
            let ahead = usize::from(time.is_some_and(|time| time.is_next_day));
            let named: Vec<String> = said.days.iter().map(|day| ((day + ahead) % 7).to_string()).collect();
            format!("* * {}", named.join(","))
        }
        // The night of the last day ends in another month.
        (Some(Unit::Month), true, Some(_)) if time.is_some_and(|time| time.is_next_day) => return None,
        (Some(Unit::Month), true, Some(day)) => format!("{day} * *"),
        (Some(Unit::Week), true, None) => {
            return Some(Err("names no day: write for example `every monday at 9`".into()));
        }
        (Some(Unit::Month), true, None) => {
            return Some(Err("names no day: write for example `every month on the 1st at 9`".into()));
        }
        _ => return None,
    };
    Some(match time {
        Some(TimeOfDay { hour, minute, .. }) => Ok(format!("{minute} {hour} {days}")),
        None => Err(format!("{WITHOUT_TIME} `{} at 9`", text.trim())),
    })
}

/// Returns the cron expression of every so many minutes or hours, which must divide the hour or the day.
fn interval(unit: Unit, count: u32) -> Result<String, String> {
    let (whole, name) = if unit == Unit::Minute { (60, "minutes") } else { (24, "hours") };
    match count {
        0 => Err("is no interval".into()),
        1 if unit == Unit::Minute => Ok("* * * * *".into()),
        1 => Ok("0 * * * *".into()),
        60 if unit == Unit::Minute => Ok("0 * * * *".into()),
        count if count < whole && whole % count == 0 && unit == Unit::Minute => {
            Ok(format!("*/{count} * * * *"))
        }
        count if count < whole && whole % count == 0 => Ok(format!("0 */{count} * * *")),
        count => {
            let near =
                (1..=whole / 2).filter(|near| whole % near == 0).min_by_key(|near| near.abs_diff(count));
            Err(format!(
                "is no cron expression: only {name} that divide {whole} are, such as `every {} {name}`",
                near.unwrap_or(1)
            ))
        }
    }
}

/// Returns the time of the calendar that words name; `None` if the words name none.
///
/// # Errors
///
/// Returns what is missing.
pub(super) fn instant(text: &str, now: &Zoned) -> Option<Result<DateTime, String>> {
    let said =
        TimeWords::of(text).filter(|said| !said.every && said.unit.is_none() && said.days.len() <= 1)?;
    let is_dated = said.is_dated();
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
        (None, None, None, None, Some(day)) => {
            let days = i64::try_from(*day).ok()? - i64::from(today.weekday().to_sunday_zero_offset());
            let days = days.rem_euclid(7);
            let is_over = days == 0 && (said.is_next || has_passed(today));
            ahead(if is_over { 7 } else { days })?
        }
        (None, None, None, None, None) => yesterday.or_else(|| ahead(i64::from(has_passed(today))))?,
        _ => return None,
    };
    Some(Ok(at(date)?))
}
