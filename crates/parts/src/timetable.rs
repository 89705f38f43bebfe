//! Reads times (`in 5m`, ISO 8601, cron expressions, people's words), and finds the next one in a time zone.
//!
//! Times are wall-clock times in milliseconds since 1970. This room does not know what happens at a time.

mod words;

use std::{str::FromStr, time::Duration};

use croner::{
    Cron,
    parser::{CronParser, Seconds, Year},
};
use jiff::{Timestamp, Zoned, civil::DateTime, tz::TimeZone};
use nonet_base::{clock::millis, text::clip};
use nonet_text::name;

/// How far ahead a time may be.
const MOST_AHEAD: Duration = Duration::from_secs(10 * 366 * 24 * 3_600);
/// How long the text of a time may be, in bytes.
const MAX_TEXT: usize = 200;
/// How many zones are suggested for an unknown one.
const SUGGESTED: usize = 3;

/// A time zone: one from the IANA database, or the machine's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Zone(TimeZone);

/// When something happens: once or repeatedly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Timetable {
    /// Once, at this time.
    Once(u64),
    /// At the times of a cron expression.
    Cron(Box<Cron>),
}

/// Why a text is not a time or a zone.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct TimeFault {
    /// What is wrong, and which forms are accepted.
    pub message: String,
    /// The likely intended ones, best first.
    pub near: Vec<String>,
}

impl TimeFault {
    fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), near: Vec::new() }
    }
}

impl Zone {
    /// Returns the zone with a name from the IANA database; without a name, the machine's, or UTC if the
    /// machine has none.
    ///
    /// # Errors
    ///
    /// Returns an unknown name, with the nearest ones.
    pub fn of(name: Option<&str>) -> Result<Self, TimeFault> {
        let Some(name) = name.map(str::trim).filter(|name| !name.is_empty()) else {
            return Ok(Self::machine());
        };
        TimeZone::get(name).map(Self).map_err(|_| unknown_zone(name))
    }

    /// Returns this machine's zone, or UTC if it has none.
    pub fn machine() -> Self {
        Self(TimeZone::try_system().unwrap_or(TimeZone::UTC))
    }

    /// Returns its name in the IANA database, if it has one.
    pub fn name(&self) -> Option<&str> {
        self.0.iana_name()
    }

    /// Returns a time as ISO 8601 with the zone's offset.
    pub fn show(&self, ms: u64) -> String {
        self.at(ms).strftime("%Y-%m-%dT%H:%M:%S%:z").to_string()
    }

    fn at(&self, ms: u64) -> Zoned {
        let time = i64::try_from(ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
        time.unwrap_or(Timestamp::MAX).to_zoned(self.0.clone())
    }
}

impl Timetable {
    /// Reads a time, which must come after `now_ms`.
    ///
    /// # Errors
    ///
    /// Returns a fault for a text that is not a time, a time in the past, and a cron expression that never
    /// matches.
    pub fn read(text: &str, zone: &Zone, now_ms: u64) -> Result<Self, TimeFault> {
        let text = text.trim();
        if text.len() > MAX_TEXT {
            let message = format!("`when` has {} bytes; give at most {MAX_TEXT}.", text.len());
            return Err(TimeFault::new(message));
        }
        if let Some(wait) = after_in(text) {
            return once_in(text, wait, now_ms);
        }
        if let Some(at_ms) = instant(text, zone) {
            return once_at(text, at_ms, zone, now_ms);
        }
        if let Some(named) = words::instant(text, &zone.at(now_ms)) {
            let named = named.map_err(|why| TimeFault::new(format!("`{text}` {why}.")))?;
            let at = zone.0.to_timestamp(named).ok().and_then(|at| u64::try_from(at.as_millisecond()).ok());
            return once_at(text, at.unwrap_or(0), zone, now_ms);
        }
        if let Some(cron) = repeated(text) {
            let timetable = Self::Cron(Box::new(cron?));
            return match timetable.after(now_ms, zone) {
                Some(_) => Ok(timetable),
                None => Err(TimeFault::new(format!("`{text}` never occurs: there is no such date."))),
            };
        }
        let wait = text.strip_suffix("from now").unwrap_or(text);
        if humantime::parse_duration(&words::wait(wait)).is_ok() {
            return once_in(text, wait, now_ms);
        }
        Err(unreadable(text, zone, now_ms))
    }

    /// Reads a cron expression, or words for one, that were read before.
    pub fn of_cron(text: &str) -> Option<Self> {
        repeated(text)?.ok().map(|cron| Self::Cron(Box::new(cron)))
    }

    /// Returns the first time after `ms`, if there is one.
    ///
    /// A time skipped on a day because the clocks go forward happens once they have; a time that occurs twice
    /// happens the first time. A cron expression with `*` for the hour follows elapsed hours.
    pub fn after(&self, ms: u64, zone: &Zone) -> Option<u64> {
        match self {
            Self::Once(at_ms) => Some(*at_ms).filter(|at_ms| *at_ms > ms),
            Self::Cron(cron) => {
                let next = cron.find_next_occurrence(&zone.at(ms), false).ok()?;
                u64::try_from(next.timestamp().as_millisecond()).ok().filter(|next| *next > ms)
            }
        }
    }
}

/// Returns the text after `in `, in any case.
fn after_in(text: &str) -> Option<&str> {
    let (first, rest) = text.split_once(char::is_whitespace)?;
    first.eq_ignore_ascii_case("in").then_some(rest.trim())
}

fn once_in(text: &str, wait: &str, now_ms: u64) -> Result<Timetable, TimeFault> {
    let wait = humantime::parse_duration(&words::wait(wait)).map_err(|error| {
        let message = format!(
            "`{}` is not a time from now: {error}. Write `in 30s`, `in 5m`, `in two hours`, `in 1d` or `in 1h 30m`.",
            clip(text, 60)
        );
        TimeFault::new(message)
    })?;
    if wait.is_zero() || wait > MOST_AHEAD {
        return Err(TimeFault::new(format!("`{text}` is not within the next ten years.")));
    }
    Ok(Timetable::Once(now_ms.saturating_add(millis(wait))))
}

fn once_at(text: &str, at_ms: u64, zone: &Zone, now_ms: u64) -> Result<Timetable, TimeFault> {
    let now = zone.show(now_ms);
    if at_ms <= now_ms {
        let message = format!("`{text}` has passed: it is {now} now, and that was {}.", zone.show(at_ms));
        return Err(TimeFault::new(message));
    }
    if at_ms - now_ms > millis(MOST_AHEAD) {
        return Err(TimeFault::new(format!("`{text}` is not within the next ten years: it is {now} now.")));
    }
    Ok(Timetable::Once(at_ms))
}

/// Returns an ISO 8601 time, with an offset or in the zone. A time before 1970 becomes 1970.
fn instant(text: &str, zone: &Zone) -> Option<u64> {
    // The order matters: each parser ignores parts that only the one before it respects.
    let time = Timestamp::from_str(text)
        .or_else(|_| Zoned::from_str(text).map(|zoned| zoned.timestamp()))
        .or_else(|error| match text.contains('[') {
            // The zone in brackets does not exist.
            true => Err(error),
            false => zone.0.to_timestamp(DateTime::from_str(text)?),
        });
    time.ok().map(|time| u64::try_from(time.as_millisecond()).unwrap_or(0))
}

/// Returns an interval in whole seconds: `30s`, `5m`, `every minute`, `two hours`.
pub fn seconds(text: &str) -> Option<u64> {
    let lower = text.trim().to_lowercase();
    let rest = ["every ", "each "].iter().find_map(|first| lower.strip_prefix(first)).unwrap_or(&lower);
    let wait = words::wait(rest);
    let wait =
        humantime::parse_duration(&wait).or_else(|_| humantime::parse_duration(&format!("1 {wait}"))).ok()?;
    (wait.subsec_nanos() == 0).then_some(wait.as_secs())
}

/// Returns the cron expression of a text that is meant as one, or that says in words what repeats.
fn repeated(text: &str) -> Option<Result<Cron, TimeFault>> {
    if let Some(meant) = words::cron(text) {
        return Some(
            meant.map_err(|why| TimeFault::new(format!("`{text}` {why}."))).and_then(|meant| cron(&meant)),
        );
    }
    (text.starts_with('@') || is_cron_like(text)).then(|| cron(text))
}

/// Returns whether a text is meant as a cron expression: several fields, the first of which is for minutes.
fn is_cron_like(text: &str) -> bool {
    let mut fields = text.split_whitespace();
    let is_minutes = |first: &str| first.chars().all(|c| c.is_ascii_digit() || "*,-/?".contains(c));
    fields.next().is_some_and(is_minutes) && fields.count() >= 3
}

fn cron(text: &str) -> Result<Cron, TimeFault> {
    let fields = text.split_whitespace().count();
    let five = "A cron expression has five fields: minute, hour, day of the month, month, day of the week (0 = Sunday), such as `0 9 * * 1-5`";
    if !text.starts_with('@') && fields != 5 {
        return Err(TimeFault::new(format!("`{text}` has {fields} fields. {five}.")));
    }
    let parser = CronParser::builder().seconds(Seconds::Disallowed).year(Year::Disallowed).build();
    parser.parse(text).map_err(|error| {
        TimeFault::new(format!(
            "`{text}` is not a cron expression: {}. {five}.",
            error.to_string().trim_end_matches('.')
        ))
    })
}

fn unreadable(text: &str, zone: &Zone, now_ms: u64) -> TimeFault {
    TimeFault::new(format!(
        "`{}` is not a time. `when` is `in 5m`, `in two hours`, `tomorrow at 9` or `friday at 17:30`; `every day at 9`, `every weekday at 9` or `every 15 minutes`; ISO 8601 such as `{}`; or a cron expression such as `0 9 * * 1-5`. It is {} now.",
        clip(text, 60),
        zone.show(now_ms.saturating_add(24 * 3_600_000)),
        zone.show(now_ms),
    ))
}

/// Returns the fault of an unknown zone. A city, or a misspelled name, gets the likely zones.
fn unknown_zone(name: &str) -> TimeFault {
    let known: Vec<String> = jiff::tz::db().available().map(|known| known.to_string()).collect();
    let wanted = name::fold(name);
    let city = |known: &str| known.rsplit_once('/').is_some_and(|(_, city)| name::fold(city) == wanted);
    let mut near: Vec<String> = known.iter().filter(|known| city(known)).take(SUGGESTED).cloned().collect();
    if near.is_empty() {
        near = name::nearest(name, known.iter().map(String::as_str), SUGGESTED)
            .into_iter()
            .map(|near| near.to_string())
            .collect();
    }
    let example = near.first().map_or("Europe/Berlin", String::as_str);
    let message = format!(
        "There is no time zone `{}`. Give a name of the IANA database such as `{example}`, or none for the zone of this machine.",
        clip(name, 60)
    );
    TimeFault { message, near }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: &str = "2026-11-22T20:00:00+01:00";

    fn berlin() -> Zone {
        Zone::of(Some("Europe/Berlin")).expect("known")
    }

    fn ms(time: &str) -> u64 {
        instant(time, &berlin()).expect("a time")
    }

    /// Returns the first times of `when` after `now`, formatted in the zone.
    fn times(when: &str, zone: &str, now: &str, most: usize) -> Vec<String> {
        let zone = Zone::of(Some(zone)).expect("known");
        let mut at = ms(now);
        let timetable = Timetable::read(when, &zone, at).unwrap_or_else(|fault| panic!("{when}: {fault}"));
        let next = std::iter::from_fn(|| {
            at = timetable.after(at, &zone)?;
            Some(zone.show(at))
        });
        next.take(most).collect()
    }

    fn fault(when: &str) -> String {
        let fault = Timetable::read(when, &berlin(), ms(NOW));
        fault.map(|read| format!("{when}: {read:?}")).expect_err("a fault").message
    }

    #[test]
    fn a_time_is_read_in_its_zone() {
        let check = |when: &str, expected: &str| {
            assert_eq!(times(when, "Europe/Berlin", NOW, 2), [expected], "{when}");
        };
        for when in ["in 30s", "IN 30S", "30s", " in  30 s "] {
            check(when, "2026-11-22T20:00:30+01:00");
        }
        check("in 5m", "2026-11-22T20:05:00+01:00");
        check("in 2h", "2026-11-22T22:00:00+01:00");
        check("in 1d", "2026-11-23T20:00:00+01:00");
        check("in 1h 30m", "2026-11-22T21:30:00+01:00");
        check("in 1h30m", "2026-11-22T21:30:00+01:00");
        check("in 5 minutes", "2026-11-22T20:05:00+01:00");
        check("2026-11-23T09:00:00Z", "2026-11-23T10:00:00+01:00");
        check("2026-11-23T09:00:00-05:00", "2026-11-23T15:00:00+01:00");
        check("2026-11-23T09:00:00+01:00[Europe/Berlin]", "2026-11-23T09:00:00+01:00");
        for when in
            ["2026-11-23T09:00", "2026-11-23 09:00", "2026-11-23T09:00:00", "2026-11-23T09:00[Europe/Berlin]"]
        {
            check(when, "2026-11-23T09:00:00+01:00");
        }
        check("2027-06-01", "2027-06-01T00:00:00+02:00");
        // A skipped time happens when the clocks have gone forward; a time that occurs twice happens the
        // first time.
        check("2027-03-28T02:30", "2027-03-28T03:30:00+02:00");
        check("2027-10-31T02:30", "2027-10-31T02:30:00+02:00");
    }

    #[test]
    fn a_time_may_be_in_words() {
        // A Sunday, 20:00.
        let check = |when: &str, expected: &[&str]| {
            assert_eq!(times(when, "Europe/Berlin", NOW, expected.len()), expected, "{when}");
        };
        check("in two hours", &["2026-11-22T22:00:00+01:00"]);
        check("in half an hour", &["2026-11-22T20:30:00+01:00"]);
        check("in a minute", &["2026-11-22T20:01:00+01:00"]);
        check("In an hour and 30 minutes", &["2026-11-22T21:30:00+01:00"]);
        check("two days from now", &["2026-11-24T20:00:00+01:00"]);
        for when in [
            "tomorrow at 9",
            "Tomorrow 9am",
            "tomorrow at 09:00",
            "at 9 tomorrow",
            "tomorrow morning",
            "at 9",
            "9am",
            "9:00 am",
            "next monday at 9",
            "monday, 9 o'clock",
            "2026-11-23 at 9",
            "nov 23 at 9",
            "November 23rd at 9:00",
        ] {
            check(when, &["2026-11-23T09:00:00+01:00"]);
        }
        check("tonight at 8:30", &["2026-11-22T20:30:00+01:00"]);
        check("tomorrow evening", &["2026-11-23T18:00:00+01:00"]);
        check("today at 21:15", &["2026-11-22T21:15:00+01:00"]);
        check("the day after tomorrow at noon", &["2026-11-24T12:00:00+01:00"]);
        check("sunday at 9", &["2026-11-29T09:00:00+01:00"]);
        check("24 december 2027 at 6pm", &["2027-12-24T18:00:00+01:00"]);
        check("sept 1 at 7", &["2027-09-01T07:00:00+02:00"]);
        check("march 1 at 7", &["2027-03-01T07:00:00+01:00"]);
        check("every minute", &["2026-11-22T20:01:00+01:00", "2026-11-22T20:02:00+01:00"]);
        check("every 15 minutes", &["2026-11-22T20:15:00+01:00", "2026-11-22T20:30:00+01:00"]);
        check("every half hour", &["2026-11-22T20:30:00+01:00", "2026-11-22T21:00:00+01:00"]);
        check("hourly", &["2026-11-22T21:00:00+01:00", "2026-11-22T22:00:00+01:00"]);
        check("every six hours", &["2026-11-23T00:00:00+01:00", "2026-11-23T06:00:00+01:00"]);
        for when in ["every day at 9", "daily at 9:00", "at 9 every day", "every morning"] {
            check(when, &["2026-11-23T09:00:00+01:00", "2026-11-24T09:00:00+01:00"]);
        }
        check("every weekday at 9:30", &["2026-11-23T09:30:00+01:00", "2026-11-24T09:30:00+01:00"]);
        check("weekends at 10", &["2026-11-28T10:00:00+01:00", "2026-11-29T10:00:00+01:00"]);
        for when in
            ["every monday and thursday at 5pm", "mondays, thurs at 17:00", "every week on mon and thu at 17"]
        {
            check(when, &["2026-11-23T17:00:00+01:00", "2026-11-26T17:00:00+01:00"]);
        }
        for when in ["every month on the 1st at 9", "monthly on the 1st at 9am"] {
            check(when, &["2026-12-01T09:00:00+01:00", "2027-01-01T09:00:00+01:00"]);
        }
    }

    #[test]
    fn a_night_goes_on_after_midnight() {
        // A Sunday, 20:00, and the night after it.
        let after_midnight = "2026-11-23T00:30:00+01:00";
        let check = |when: &str, now: &str, expected: &str| {
            assert_eq!(times(when, "Europe/Berlin", now, 1), [expected], "{when} {now}");
        };
        for (when, expected) in [
            ("tonight at 9", "2026-11-22T21:00:00+01:00"),
            ("tonight at 23", "2026-11-22T23:00:00+01:00"),
            ("tonight at 11pm", "2026-11-22T23:00:00+01:00"),
            ("tonight at 12", "2026-11-23T00:00:00+01:00"),
            ("tonight at 12am", "2026-11-23T00:00:00+01:00"),
            ("tonight at 2", "2026-11-23T02:00:00+01:00"),
            ("at 2 at night", "2026-11-23T02:00:00+01:00"),
            ("sunday night at 1", "2026-11-23T01:00:00+01:00"),
            ("tomorrow night at 8", "2026-11-23T20:00:00+01:00"),
            ("tomorrow night at 1am", "2026-11-24T01:00:00+01:00"),
            ("november 30 at night at 1", "2026-12-01T01:00:00+01:00"),
            ("tomorrow afternoon at 3", "2026-11-23T15:00:00+01:00"),
            ("tomorrow afternoon at 12", "2026-11-23T12:00:00+01:00"),
            ("tomorrow evening at 7am", "2026-11-23T07:00:00+01:00"),
            ("every night at 2", "2026-11-23T02:00:00+01:00"),
            ("every night at 2am", "2026-11-23T02:00:00+01:00"),
            ("every night at 12", "2026-11-23T00:00:00+01:00"),
            ("every night at 10", "2026-11-22T22:00:00+01:00"),
            ("every monday night at 1", "2026-11-24T01:00:00+01:00"),
            ("every saturday night at 11", "2026-11-28T23:00:00+01:00"),
        ] {
            check(when, NOW, expected);
        }
        check("tonight at 2", after_midnight, "2026-11-23T02:00:00+01:00");
        check("tonight at 9", after_midnight, "2026-11-23T21:00:00+01:00");
        check("at 2 at night", after_midnight, "2026-11-23T02:00:00+01:00");
        assert!(fault("tonight at 7").contains("has passed") && fault("today at 2").contains("has passed"));
        assert!(fault("every month on the 31st at night at 1").contains("is not a time"));
    }

    #[test]
    fn an_interval_may_be_in_words() {
        let check = |text: &str, expected: Option<u64>| assert_eq!(seconds(text), expected, "{text}");
        check("30s", Some(30));
        check("5m", Some(300));
        check("every minute", Some(60));
        check("Every two minutes", Some(120));
        check("half an hour", Some(1_800));
        check("1h", Some(3_600));
        check("30", None);
        check("500ms", None);
        check("soon", None);
        check("", None);
    }

    #[test]
    fn cron_goes_by_the_zone() {
        let check = |when: &str, zone: &str, now: &str, expected: &[&str]| {
            assert_eq!(times(when, zone, now, expected.len()), expected, "{when} {zone}");
        };
        // A Friday.
        let friday = "2026-11-20T12:00:00+01:00";
        let week = ["2026-11-23T09:00:00+01:00", "2026-11-24T09:00:00+01:00"];
        check("0 9 * * 1-5", "Europe/Berlin", friday, &week);
        check("0 9 * * MON-FRI", "Europe/Berlin", friday, &week);
        check("0 9 * * 1-5", "America/New_York", friday, &["2026-11-20T09:00:00-05:00"]);
        check("0 9 * * 0", "Europe/Berlin", friday, &["2026-11-22T09:00:00+01:00"]);
        check("0 9 * * 7", "Europe/Berlin", friday, &["2026-11-22T09:00:00+01:00"]);
        check("@daily", "UTC", friday, &["2026-11-21T00:00:00+00:00"]);
        // Either day matches: cron has always worked that way.
        check(
            "0 0 1 * 1",
            "UTC",
            friday,
            &["2026-11-23T00:00:00+00:00", "2026-11-30T00:00:00+00:00", "2026-12-01T00:00:00+00:00"],
        );
        check("0 0 29 2 *", "UTC", friday, &["2028-02-29T00:00:00+00:00"]);
        // Never the current time itself.
        check("0 12 * * *", "Europe/Berlin", friday, &["2026-11-21T12:00:00+01:00"]);
    }

    #[test]
    fn a_fixed_time_comes_once_a_day_across_daylight_saving() {
        let check = |when: &str, zone: &str, now: &str, expected: &[&str]| {
            assert_eq!(times(when, zone, now, expected.len()), expected, "{when} {now}");
        };
        let spring = "2027-03-27T12:00:00+01:00";
        check(
            "30 2 * * *",
            "Europe/Berlin",
            spring,
            &["2027-03-28T03:00:00+02:00", "2027-03-29T02:30:00+02:00"],
        );
        let autumn = "2027-10-30T12:00:00+02:00";
        check(
            "30 2 * * *",
            "Europe/Berlin",
            autumn,
            &["2027-10-31T02:30:00+02:00", "2027-11-01T02:30:00+01:00"],
        );
        check(
            "30 1 * * *",
            "America/New_York",
            "2027-11-06T12:00:00-04:00",
            &["2027-11-07T01:30:00-04:00", "2027-11-08T01:30:00-05:00"],
        );
        // Hourly times continue hour by hour.
        check(
            "0 * * * *",
            "Europe/Berlin",
            "2027-10-31T01:30:00+02:00",
            &["2027-10-31T02:00:00+02:00", "2027-10-31T02:00:00+01:00", "2027-10-31T03:00:00+01:00"],
        );
        check(
            "0 * * * *",
            "Europe/Berlin",
            "2027-03-28T01:30:00+01:00",
            &["2027-03-28T03:00:00+02:00", "2027-03-28T04:00:00+02:00"],
        );
    }

    #[test]
    fn what_is_no_time_is_told_with_what_is() {
        let check = |when: &str, part: &str| assert!(fault(when).contains(part), "{when}: {}", fault(when));
        check("", "is not a time");
        check("when it rains", "It is 2026-11-22T20:00:00+01:00 now");
        check("when it rains", "2026-11-23T20:00:00+01:00");
        check("every now and then", "`tomorrow at 9`");
        check("tomorrow", "`tomorrow at 9`");
        check("every day", "`every day at 9`");
        check("every week", "`every monday at 9`");
        check("monthly", "`every month on the 1st at 9`");
        check("every 45 minutes", "`every 30 minutes`");
        check("every 10 seconds", "gateway.watch_start");
        check("every 2 days at 9", "`every monday and thursday at 9`");
        check("today at 9", "has passed");
        check("tomorrow at 25", "is not a time");
        check("tomorrow at 13pm", "is not a time");
        check("february 30 at 9", "is not a time");
        check("9", "is not a time");
        check("in a while", "in 30s");
        check("in 0s", "ten years");
        check("in 99999d", "ten years");
        check("in 99999999999999999999d", "not a time from now");
        check(
            "2026-11-22T19:00",
            "has passed: it is 2026-11-22T20:00:00+01:00 now, and that was 2026-11-22T19:00:00+01:00",
        );
        check("1926-11-22T19:00:00Z", "has passed");
        check("2926-11-22T19:00", "ten years");
        check("2026-13-22T19:00", "is not a time");
        check("0 9 * *", "has 4 fields");
        check("0 0 9 * * 1", "has 6 fields");
        check("61 * * * *", "is not a cron expression");
        check("0 9 * * 8", "0 = Sunday");
        check("0 0 30 2 *", "never");
        check(&"9".repeat(300), "at most 200");
    }

    #[test]
    fn zones_are_known_by_name() {
        assert!(Zone::of(None).is_ok() && Zone::of(Some(" ")).is_ok());
        assert_eq!(Zone::of(Some("europe/berlin")).expect("known").name(), Some("Europe/Berlin"));
        let near = |name: &str| Zone::of(Some(name)).expect_err("unknown").near;
        assert_eq!(near("Berlin"), ["Europe/Berlin"]);
        assert_eq!(near("New York"), ["America/New_York"]);
        assert_eq!(near("Europe/Berln")[0], "Europe/Berlin");
        assert!(Zone::of(Some("../../etc/passwd")).is_err());
        assert_eq!(berlin().show(u64::MAX).get(..4), Some("9999"));
    }
}
