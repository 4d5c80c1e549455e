// How the launcher of another host gets to the store of node 0.
#pragma once
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "group/network.h"
#include "launch/admission/secret.h"

namespace c10d {
class Store;
}

namespace brigade::launching {

// Where node 0 was said to be.
struct FirstNode {
  std::string host;
  std::uint16_t port = 0;
  // How long a launcher waits for it.
  std::chrono::milliseconds limit;
};

// Without a secret: connects to the store. Null: nobody listens there yet, and why. Throws
// RendezvousError when node 0 asks for a secret.
c10::intrusive_ptr<c10d::Store> open_store(const FirstNode& node, std::string& why);

// The same where no question is to be expected: through this host's own launcher.
c10::intrusive_ptr<c10d::Store> open_store_through(std::uint16_t workers_door,
                                                   std::chrono::milliseconds limit);

// With one: proves it once, and gives the address of node 0's launchers' door. None: nobody
// listens there yet, and why. Throws RendezvousError that names the address when the
// secrets differ, or node 0 asks for none.
std::optional<group::Address> knock(const FirstNode& node,
                                    std::shared_ptr<const Secret> secret, std::string& why);

}  // namespace brigade::launching
