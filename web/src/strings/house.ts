// What is needed before anyone looks at the house itself: the rest is in `house-parts`, and loaded with it.

export const invited = {
  title: "You are invited",
  words: "Someone let you into this house. Come in, and this browser is signed in as you.",
  already: "This browser is signed in as someone else now. If you come in, it is you who is signed in here.",
  go: "Come in",
  leave: "Not now",
};
