#include "jinja/strftime.h"

#include <cstdio>

#include "jinja/value.h"

namespace mlcb::jinja {
namespace {

const char* const kMonths[] = {"January",   "February", "March",    "April",
                               "May",       "June",     "July",     "August",
                               "September", "October",  "November", "December"};
const char* const kDays[] = {"Sunday",   "Monday", "Tuesday", "Wednesday",
                             "Thursday", "Friday", "Saturday"};

struct Time {
  int64_t year;
  int month, day, hour, minute, second, weekday, year_day;  // month from 1, the others from 0
};

bool is_leap(int64_t year) { return (year % 4 == 0 && year % 100 != 0) || year % 400 == 0; }

int month_days(int64_t year, int month) {
  if (month == 2) return is_leap(year) ? 29 : 28;
  return month == 4 || month == 6 || month == 9 || month == 11 ? 30 : 31;
}

Time to_time(int64_t seconds) {
  Time time{};
  int64_t days = seconds / 86400;
  int64_t rest = seconds % 86400;
  if (rest < 0) {
    rest += 86400;
    --days;
  }
  time.hour = static_cast<int>(rest / 3600);
  time.minute = static_cast<int>(rest / 60 % 60);
  time.second = static_cast<int>(rest % 60);
  time.weekday = static_cast<int>(((days + 4) % 7 + 7) % 7);
  int64_t cycles = days / 146097;  // of 400 years
  days %= 146097;
  if (days < 0) {
    days += 146097;
    --cycles;
  }
  time.year = 1970 + 400 * cycles;
  while (days >= (is_leap(time.year) ? 366 : 365)) {
    days -= is_leap(time.year) ? 366 : 365;
    ++time.year;
  }
  time.year_day = static_cast<int>(days);
  time.month = 1;
  while (days >= month_days(time.year, time.month)) days -= month_days(time.year, time.month++);
  time.day = static_cast<int>(days) + 1;
  return time;
}

std::string padded(int64_t value, int width, char pad) {
  std::string text = std::to_string(value);
  if (pad == '-' || static_cast<int>(text.size()) >= width) return text;
  return std::string(static_cast<size_t>(width) - text.size(), pad) + text;
}

// One directive; pad is '0', ' ' or '-' (none), or '\0' for the directive's own.
std::string expand(char directive, char pad, const Time& time) {
  const int hour12 = time.hour % 12 == 0 ? 12 : time.hour % 12;
  const auto number = [&](int64_t value, int width, char usual = '0') {
    return padded(value, width, pad != '\0' ? pad : usual);
  };
  switch (directive) {
    case 'Y':
      return number(time.year, 1);
    case 'y':
      return number(time.year % 100, 2);
    case 'C':
      return number(time.year / 100, 2);
    case 'm':
      return number(time.month, 2);
    case 'd':
      return number(time.day, 2);
    case 'e':
      return number(time.day, 2, ' ');
    case 'j':
      return number(time.year_day + 1, 3);
    case 'H':
      return number(time.hour, 2);
    case 'k':
      return number(time.hour, 2, ' ');
    case 'I':
      return number(hour12, 2);
    case 'l':
      return number(hour12, 2, ' ');
    case 'M':
      return number(time.minute, 2);
    case 'S':
      return number(time.second, 2);
    case 'f':
      return "000000";
    case 'u':
      return number(time.weekday == 0 ? 7 : time.weekday, 1);
    case 'w':
      return number(time.weekday, 1);
    case 'p':
      return time.hour < 12 ? "AM" : "PM";
    case 'P':
      return time.hour < 12 ? "am" : "pm";
    case 'A':
      return kDays[time.weekday];
    case 'a':
      return std::string(kDays[time.weekday], 3);
    case 'B':
      return kMonths[time.month - 1];
    case 'b':
    case 'h':
      return std::string(kMonths[time.month - 1], 3);
    case 'z':  // Python's time has no zone here
    case 'Z':
      return "";
    case 'n':
      return "\n";
    case 't':
      return "\t";
    case '%':
      return "%";
    default:
      fail(std::string("strftime_now does not know %") + directive);
  }
}

}  // namespace

std::string strftime_utc(std::string_view format, int64_t seconds) {
  const Time time = to_time(seconds);
  std::string out;
  for (size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%' || i + 1 == format.size()) {
      out.push_back(format[i]);
      continue;
    }
    char pad = '\0';
    char directive = format[++i];
    if ((directive == '-' || directive == '_' || directive == '0') && i + 1 < format.size()) {
      pad = directive == '_' ? ' ' : directive;
      directive = format[++i];
    }
    switch (directive) {  // those made of others
      case 'F':
        out += strftime_utc("%Y-%m-%d", seconds);
        break;
      case 'T':
        out += strftime_utc("%H:%M:%S", seconds);
        break;
      case 'R':
        out += strftime_utc("%H:%M", seconds);
        break;
      case 'D':
      case 'x':
        out += strftime_utc("%m/%d/%y", seconds);
        break;
      case 'X':
        out += strftime_utc("%H:%M:%S", seconds);
        break;
      case 'c':
        out += strftime_utc("%a %b %e %H:%M:%S %Y", seconds);
        break;
      default:
        out += expand(directive, pad, time);
    }
  }
  return out;
}

}  // namespace mlcb::jinja
