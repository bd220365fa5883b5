#include "grammar/schema_format.h"

namespace mlcb {
namespace {

// February has a 29th in leap years only.
#define MLCB_LEAP_YEAR "(\\d\\d(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)"
#define MLCB_DATE                                                                    \
  "(\\d{4}-((0[13578]|1[02])-(0[1-9]|[12]\\d|3[01])|(0[469]|11)-(0[1-9]|[12]\\d|30)" \
  "|02-(0[1-9]|1\\d|2[0-8]))|" MLCB_LEAP_YEAR "-02-29)"
#define MLCB_HOURS_MINUTES "([01]\\d|2[0-3]):[0-5]\\d"
#define MLCB_TIME MLCB_HOURS_MINUTES ":[0-5]\\d(\\.\\d+)?(Z|[+-]" MLCB_HOURS_MINUTES ")"
#define MLCB_DURATION_TIME "T(\\d+H(\\d+M(\\d+S)?)?|\\d+M(\\d+S)?|\\d+S)"
#define MLCB_DURATION_DATE "(\\d+Y(\\d+M(\\d+D)?)?|\\d+M(\\d+D)?|\\d+D)"
#define MLCB_LABEL "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
#define MLCB_HOST MLCB_LABEL "(\\." MLCB_LABEL ")*"
#define MLCB_ATOM "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
#define MLCB_BYTE "(25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)"
#define MLCB_H16 "[0-9A-Fa-f]{1,4}"
// Characters of the parts of a URI: plain ones, or a percent sign and two digits.
#define MLCB_PLAIN "A-Za-z0-9._~!$&'()*+,;=\\-"
#define MLCB_PERCENT "%[0-9A-Fa-f]{2}"
#define MLCB_PATH_CHAR "([" MLCB_PLAIN ":@]|" MLCB_PERCENT ")"
#define MLCB_SEGMENTS "(/" MLCB_PATH_CHAR "*)*"
#define MLCB_AUTHORITY                                                             \
  "//(([" MLCB_PLAIN ":]|" MLCB_PERCENT ")*@)?(\\[[0-9A-Fa-f:.]+\\]|([" MLCB_PLAIN \
  "]|" MLCB_PERCENT ")*)(:\\d*)?" MLCB_SEGMENTS
#define MLCB_QUERY "(\\?([" MLCB_PLAIN ":@/?]|" MLCB_PERCENT ")*)?"
#define MLCB_FRAGMENT "(#([" MLCB_PLAIN ":@/?]|" MLCB_PERCENT ")*)?"
#define MLCB_URI                                                                    \
  "[A-Za-z][A-Za-z0-9+.-]*:(" MLCB_AUTHORITY "|/(" MLCB_PATH_CHAR "+" MLCB_SEGMENTS \
  ")?|" MLCB_PATH_CHAR "+" MLCB_SEGMENTS "|)" MLCB_QUERY MLCB_FRAGMENT
#define MLCB_RELATIVE_URI                                                                         \
  "(" MLCB_AUTHORITY "|/(" MLCB_PATH_CHAR "+" MLCB_SEGMENTS ")?|([" MLCB_PLAIN "@]|" MLCB_PERCENT \
  ")+" MLCB_SEGMENTS "|)" MLCB_QUERY MLCB_FRAGMENT
#define MLCB_POINTER "(/([^/~]|~[01])*)*"

struct Format {
  const char* name;
  const char* pattern;  // nullptr: standard, but not supported
};

constexpr Format kFormats[] = {
    {"date", MLCB_DATE},
    {"time", MLCB_TIME},
    {"date-time", MLCB_DATE "T" MLCB_TIME},
    {"duration", "P(\\d+W|" MLCB_DURATION_DATE "(" MLCB_DURATION_TIME ")?|" MLCB_DURATION_TIME ")"},
    {"email", MLCB_ATOM "(\\." MLCB_ATOM ")*@" MLCB_HOST},
    {"hostname", MLCB_HOST},
    {"ipv4", MLCB_BYTE "(\\." MLCB_BYTE "){3}"},
    {"ipv6", "(" MLCB_H16 ":){7}" MLCB_H16 "|(" MLCB_H16 ":){1,7}:|(" MLCB_H16 ":){1,6}:" MLCB_H16
             "|(" MLCB_H16 ":){1,5}(:" MLCB_H16 "){1,2}|(" MLCB_H16 ":){1,4}(:" MLCB_H16
             "){1,3}|(" MLCB_H16 ":){1,3}(:" MLCB_H16 "){1,4}|(" MLCB_H16 ":){1,2}(:" MLCB_H16
             "){1,5}|" MLCB_H16 ":(:" MLCB_H16 "){1,6}|:((:" MLCB_H16 "){1,7}|:)"},
    {"uri", MLCB_URI},
    {"uri-reference", MLCB_URI "|" MLCB_RELATIVE_URI},
    {"uuid", "[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"},
    {"json-pointer", MLCB_POINTER},
    {"relative-json-pointer", "(0|[1-9]\\d*)(#|" MLCB_POINTER ")"},
    {"idn-email", nullptr},
    {"idn-hostname", nullptr},
    {"iri", nullptr},
    {"iri-reference", nullptr},
    {"uri-template", nullptr},
    {"regex", nullptr},
};

}  // namespace

const char* format_pattern(const std::string& format, bool* standard) {
  *standard = false;
  for (const Format& known : kFormats) {
    if (format != known.name) continue;
    *standard = true;
    return known.pattern;
  }
  return nullptr;
}

}  // namespace mlcb
