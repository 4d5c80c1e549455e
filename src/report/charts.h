// The report's drawings, each as HTML.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "brigade/report.h"

namespace brigade::report {

// Returns the class that gives a series its colour in every drawing: "base" for all-reduce,
// "none" for hooks that take no mean, s1, s2 … for the others. A hook has the same colour
// over every link.
std::string colour_of(const std::string& hook, std::span<const Series> all);

enum class Across { steps, seconds, bytes };
enum class Up { loss, accuracy };
// Draws a line for each series. Empty if there is nothing to draw.
std::string line_chart(std::span<const Series> series, Up up, Across across);

enum class Amount { bytes, time };
// Draws a bar for each series of the given link. Empty if there are none.
std::string bar_chart(std::span<const Series> series, const std::string& link,
                      Amount amount);

// Draws one step of each series of the given link, on one scale. Empty if none has spans.
std::string timelines(std::span<const Series> series, const std::string& link);

// Returns a record's links in the order in which they come; "" is loopback.
std::vector<std::string> links_of(std::span<const Series> series);
std::string link_name(const std::string& link);

}  // namespace brigade::report
