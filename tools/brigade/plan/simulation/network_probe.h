// What messages between ranks cost the cores, measured on this machine.
#pragma once
#include <nlohmann/json.hpp>

#include "hooks/auto/prediction.h"

namespace brigade::tool {

// Core-seconds, of all threads at both ends together, with what the engine does for it.
struct NetworkCost {
  double message_seconds = 0;        // of one message of an exchange, whatever its length
  double host_message_seconds = 0;   // the same of an exchange that knows hosts
  double ring_message_seconds = 0;   // of one that the next one of a ring waits for
  double link_seconds_per_byte = 0;  // of a byte to another host
};

// Runs so many ranks, for a message costs less where several come at once: as root on hosts
// with links of `link_bits`, else, and for 0, over loopback. REQUIRES: there are at least
// two ranks, and with several hosts or none; this process has one thread.
NetworkCost probe_network(int hosts, int ranks_per_host, double link_bits);

nlohmann::json json_of(const NetworkCost& network);

// What is left of a hook's own cost when messages are counted by themselves.
cost::HookCost without_messages(cost::HookCost cost, const NetworkCost& network);

}  // namespace brigade::tool
