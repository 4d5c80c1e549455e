// The sockets of this process, as the kernel lists them.
#pragma once
#include <sys/socket.h>
#include <sys/stat.h>

#include <map>
#include <string>
#include <vector>

namespace brigade::group {

std::vector<int> open_descriptors();

// Throws Error when this process can't open `count` more descriptors, which `whom` needs:
// libraries that are refused one on a thread of their own abort, or wait for ever.
void check_descriptors(size_t count, const std::string& whom);

// One end of a connected TCP socket, "127.0.0.1:4711": `name` is getpeername or
// getsockname. Empty: it is no socket, or has no such end.
std::string end_of(int socket, int (*name)(int, sockaddr*, socklen_t*));

// This process's end of each connection, by inode: a descriptor's number may be given again
// at once.
std::map<ino_t, std::string> connections();

}  // namespace brigade::group
