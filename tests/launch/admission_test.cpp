// The proof of a secret, as bytes.
#include "launch/admission/admission.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "brigade/error.h"
#include "support/command.h"

namespace brigade::launching {
namespace {

std::shared_ptr<const Secret> secret(const std::string& text = "0123456789abcdef") {
  return std::make_shared<const Secret>(text, "a test");
}

// The client's hello to a server's greeting.
std::string hello_of(ClientHandshake& client, const ServerHandshake& server) {
  EXPECT_EQ(client.take(server.greeting()), Handshake::going_on);
  return client.message();
}

TEST(Admission, TwoWhoKnowTheSecretAdmitEachOther) {
  ServerHandshake server(secret());
  ClientHandshake client(secret(), 7);
  EXPECT_TRUE(is_greeting(server.greeting()));
  const std::string hello = hello_of(client, server);
  // Byte by byte, as a slow network may bring it.
  for (size_t i = 0; i + 1 < hello.size(); ++i) {
    ASSERT_EQ(server.take(hello.substr(i, 1)), Handshake::going_on);
  }
  ASSERT_EQ(server.wants(), 1U);
  EXPECT_EQ(server.take(hello.substr(hello.size() - 1)), Handshake::admitted);
  EXPECT_EQ(server.attempt(), 7U);
  EXPECT_EQ(client.take(server.answer()), Handshake::admitted);
}

TEST(Admission, AnotherSecretIsRefusedAndBothKnow) {
  ServerHandshake server(secret());
  ClientHandshake client(secret("0123456789abcdeF"), 0);
  EXPECT_EQ(server.take(hello_of(client, server)), Handshake::refused);
  EXPECT_EQ(client.take(server.answer()), Handshake::refused);
  EXPECT_EQ(client.why(), "it refused this host's secret: the two differ");
}

TEST(Admission, AServerThatDoesNotKnowTheSecretIsFound) {
  ServerHandshake server(secret());
  ClientHandshake client(secret(), 0);
  hello_of(client, server);
  EXPECT_EQ(client.take("y" + std::string(32, 'x')), Handshake::refused);
  EXPECT_EQ(client.why(), "it does not know the job's secret itself");
  ClientHandshake lost(secret(), 0);
  EXPECT_EQ(lost.take(std::string(52, 'x')), Handshake::refused);
}

TEST(Admission, AHelloThatWasOverheardIsWorthNothingLater) {
  ServerHandshake first(secret());
  ClientHandshake client(secret(), 0);
  const std::string hello = hello_of(client, first);
  ASSERT_EQ(first.take(hello), Handshake::admitted);
  ServerHandshake second(secret());
  EXPECT_EQ(second.take(hello), Handshake::refused);
}

TEST(Admission, AMessageDoesNotServeInTheOtherRole) {
  // To the client: its own proof.
  ServerHandshake server(secret());
  ClientHandshake client(secret(), 0);
  const std::string hello = hello_of(client, server);
  EXPECT_EQ(client.take("y" + hello.substr(36)), Handshake::refused);
  // To the server: its own answer, to a client that gave it the same nonces.
  ASSERT_EQ(server.take(hello), Handshake::admitted);
  ServerHandshake twin = server;
  ServerHandshake fresh(secret());
  EXPECT_EQ(fresh.take(hello.substr(0, 36) + twin.answer().substr(1)), Handshake::refused);
}

TEST(Admission, WhatIsProvenCannotBeChanged) {
  for (size_t at : {0, 3, 4, 35, 36, 67}) {
    ServerHandshake server(secret());
    ClientHandshake client(secret(), 1);
    std::string hello = hello_of(client, server);
    hello[at] = static_cast<char>(hello[at] ^ 1);
    EXPECT_EQ(server.take(hello), Handshake::refused) << at;
  }
  ServerHandshake server(secret());
  EXPECT_EQ(server.take(hello_without_secret()), Handshake::refused);
}

// What the error of reading a secret says.
std::string refusal_of(const std::string& path) {
  try {
    Secret::from_file(path);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(Admission, ASecretsFileIsPlainPrivateAndLongEnough) {
  const testing::TemporaryFolder folder;
  const std::string path = folder.path() + "/secret";
  const auto write = [&](const std::string& text, mode_t mode = 0600) {
    std::ofstream(path) << text;
    chmod(path.c_str(), mode);
    return refusal_of(path);
  };
  EXPECT_EQ(write("0123456789abcdef\n"), "");
  EXPECT_EQ(Secret::from_file(path)->bytes(), "0123456789abcdef");
  EXPECT_NE(write("0123456789abcdef", 0640).find("chmod 600 " + path), std::string::npos);
  EXPECT_NE(write("0123456789abcdef", 0604).find("chmod 600 " + path), std::string::npos);
  EXPECT_NE(write("").find("has 0 bytes; expected 16 to 4096"), std::string::npos);
  EXPECT_NE(write("0123456789abcde\n\n").find("has 15 bytes"), std::string::npos);
  EXPECT_NE(write(std::string(5'000, 'x')).find("expected 16 to 4096"), std::string::npos);
  EXPECT_EQ(write("hush").find("hush"), std::string::npos);
  EXPECT_NE(refusal_of(folder.path()).find("is no plain file"), std::string::npos);
  EXPECT_NE(refusal_of(path + "2").find("No such file"), std::string::npos);
  const std::string pipe = folder.path() + "/pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_NE(refusal_of(pipe).find("is no plain file"), std::string::npos);
}

TEST(Admission, TheVariableWithTheSecretIsTakenAway) {
  setenv("BRIGADE_SECRET", "0123456789abcdef", 1);
  EXPECT_EQ(Secret::from_environment()->bytes(), "0123456789abcdef");
  EXPECT_EQ(std::getenv("BRIGADE_SECRET"), nullptr);
  EXPECT_EQ(Secret::from_environment(), nullptr);
  setenv("BRIGADE_SECRET", "", 1);
  EXPECT_THROW(Secret::from_environment(), ConfigError);
  EXPECT_EQ(std::getenv("BRIGADE_SECRET"), nullptr);
}

}  // namespace
}  // namespace brigade::launching
