// SPDX-License-Identifier: BSD-3-Clause
// Finds the tensors in what a module's forward() returns.
#pragma once
#include <ATen/core/Tensor.h>

#include <optional>
#include <ranges>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace brigade {

namespace detail {

void collect_tensors() = delete;  // so that the lookup below finds users' overloads only

template <class T>
concept UserCollectable = requires(T& value, std::vector<at::Tensor*>& found) {
  collect_tensors(value, found);
};
template <class T>
concept MapLike = requires(T& value) {
  typename T::mapped_type;
  value.begin();
};
template <class T>
concept TupleLike = requires {
  std::tuple_size<T>::value;
};
template <class T>
inline constexpr bool kIsOptional = false;
template <class T>
inline constexpr bool kIsOptional<std::optional<T>> = true;
// What holds no tensor and may stand beside one.
template <class T>
concept PlainValue = std::is_arithmetic_v<T> || std::is_enum_v<T> ||
    std::is_same_v<T, std::string> || std::is_same_v<T, std::nullopt_t>;
template <class>
inline constexpr bool kUnsupported = false;

// Whether a T of the caller's, copied, can have its tensors replaced: what collect_tensors
// below takes, less what holds none.
template <class T>
constexpr bool holds_tensors() {
  if constexpr (std::is_same_v<T, at::Tensor> || UserCollectable<T>) {
    return true;
  } else if constexpr (PlainValue<T>) {
    return false;
  } else if constexpr (kIsOptional<T>) {
    return holds_tensors<typename T::value_type>();
  } else if constexpr (MapLike<T>) {
    return holds_tensors<typename T::mapped_type>();
  } else if constexpr (std::ranges::range<T>) {
    using Element = std::remove_reference_t<std::ranges::range_reference_t<T>>;
    if constexpr (std::is_const_v<Element> || std::is_same_v<Element, T>) {
      return false;
    } else {
      return holds_tensors<Element>();
    }
  } else if constexpr (TupleLike<T>) {
    return []<size_t... I>(std::index_sequence<I...>) {
      constexpr auto suits = []<class E>(std::type_identity<E>) {
        return PlainValue<E> || holds_tensors<E>();
      };
      return (suits(std::type_identity<std::tuple_element_t<I, T>>{}) && ...);
    }
    (std::make_index_sequence<std::tuple_size_v<T>>{});
  } else {
    return false;
  }
}

struct CollectTensors {
  template <class T>
  void operator()(T& value, std::vector<at::Tensor*>& found) const {
    if constexpr (std::is_same_v<T, at::Tensor>) {
      found.push_back(&value);
    } else if constexpr (UserCollectable<T>) {
      collect_tensors(value, found);
    } else if constexpr (PlainValue<T>) {
      // nothing in it
    } else if constexpr (kIsOptional<T>) {
      if (value) (*this)(*value, found);
    } else if constexpr (MapLike<T>) {
      for (auto& [key, mapped] : value) (*this)(mapped, found);
    } else if constexpr (std::ranges::range<T>) {
      if constexpr (!PlainValue<std::ranges::range_value_t<T>>) {
        for (auto& element : value) (*this)(element, found);
      }
    } else if constexpr (TupleLike<T>) {
      std::apply([&](auto&... element) { ((*this)(element, found), ...); }, value);
    } else {
      static_assert(
          kUnsupported<T>,
          "brigade cannot find the tensors in this type, which forward() returns. "
          "Write, in the namespace of the type: void collect_tensors(TheType& value, "
          "std::vector<at::Tensor*>& found), which calls "
          "brigade::collect_tensors(member, found) for every member that holds "
          "tensors.");
    }
  }
};

}  // namespace detail

// collect_tensors(value, found) appends the address of every tensor in `value`: a tensor, a
// tuple, pair, array, vector or other range, map, optional, any nesting of these, or a type
// with an overload of its own, found by argument-dependent lookup:
//
//   struct Output { at::Tensor logits; std::optional<at::Tensor> attention; };
//   void collect_tensors(Output& output, std::vector<at::Tensor*>& found) {
//     brigade::collect_tensors(output.logits, found);
//     brigade::collect_tensors(output.attention, found);
//   }
//
// Any other type does not compile. The order must be the same in every call.
inline constexpr detail::CollectTensors collect_tensors{};

}  // namespace brigade
