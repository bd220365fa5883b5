// Python's methods of text, over UTF-8.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace mlcb::jinja {

bool is_space(uint32_t code);
bool is_printable(uint32_t code);

int64_t character_count(std::string_view text);
// Byte offset of character number index; text.size() beyond the end.
size_t character_offset(std::string_view text, int64_t index);
std::vector<std::string_view> characters(std::string_view text);

// The first (from position from on) and the last place of part in text, in linear time; npos.
size_t find_text(std::string_view text, std::string_view part, size_t from);
size_t find_last_text(std::string_view text, std::string_view part);

std::string_view strip(std::string_view text, bool left, bool right);
// Strips characters that chars holds.
std::string_view strip(std::string_view text, std::string_view chars, bool left, bool right);
// Runs of white space separate; at most limit splits (negative: no limit).
std::vector<std::string_view> split_white_space(std::string_view text, int64_t limit,
                                                bool from_right);
std::vector<std::string_view> split(std::string_view text, std::string_view separator,
                                    int64_t limit, bool from_right);
std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends);
std::string replace(std::string_view text, std::string_view old, std::string_view with,
                    int64_t limit);

std::string to_upper(std::string_view text);
std::string to_lower(std::string_view text);
std::string to_title(std::string_view text);
std::string capitalize(std::string_view text);
bool is_upper(std::string_view text);
bool is_lower(std::string_view text);

// repr(float): the shortest text that reads back as the same number.
std::string float_repr(double value);
// printf's 'e', 'f' or 'g', whatever the locale.
std::string format_real(char type, int precision, bool alternate, double value);
// float(text), int(text, base): false if Python refuses the text (or it is beyond 64 bits).
bool parse_real(std::string_view text, double* value);
bool parse_integer(std::string_view text, int base, int64_t* value);
// repr(str), appended to out.
void append_repr(std::string_view text, std::string* out);

}  // namespace mlcb::jinja
