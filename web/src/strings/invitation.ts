// Needed before the screens are loaded, so it is a file of its own.

export const invitationStrings = {
  title: "Invitation",
  text: "You have been invited to this server. Accept the invitation to sign in with this browser.",
  signedInAlready: "Another person is signed in with this browser. If you accept, that person is signed out here.",
  accept: "Accept invitation",
  decline: "Not now",
};
